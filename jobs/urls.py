from __future__ import annotations

from django.urls import path

from jobs.views import artifact, asks, chart, datasets, hosts, job, job_list, job_new, job_yaml, live, log, retry

urlpatterns = [
    path("", job_list.job_list, name="job_list"),
    path("jobs/new/", job_new.job_new, name="job_new"),
    path("jobs/new/import/", job_yaml.job_import, name="job_import"),
    path("jobs/<int:pk>/", job.job_detail, name="job_detail"),
    path("jobs/<int:pk>/yaml/", job_yaml.job_export, name="job_export"),
    path("jobs/<int:pk>/live/", live.job_live, name="job_live"),
    path("jobs/<int:pk>/chart/", chart.job_chart, name="job_chart"),
    path("jobs/<int:pk>/log/", log.job_log, name="job_log"),
    path("jobs/<int:pk>/log/download/", log.job_log_download, name="job_log_download"),
    path("jobs/<int:pk>/submit/", job_new.dry_run_submit, name="dry_run_submit"),
    path("jobs/<int:pk>/retry/", retry.job_retry, name="job_retry"),
    path("jobs/<int:pk>/cancel/", asks.job_cancel, name="job_cancel"),
    path("jobs/<int:pk>/pause/", asks.job_pause, name="job_pause"),
    path("jobs/<int:pk>/resume/", asks.job_resume, name="job_resume"),
    path("jobs/<int:pk>/finish/", asks.job_finish, name="job_finish"),
    path("jobs/<int:pk>/checkpoint/", asks.job_checkpoint, name="job_checkpoint"),
    path("jobs/<int:pk>/artifacts/<int:artifact_pk>/", artifact.artifact_download, name="artifact_download"),
    path("datasets/", datasets.dataset_list, name="dataset_list"),
    path("datasets/new/", datasets.dataset_new, name="dataset_new"),
    path("datasets/<int:pk>/", datasets.dataset_detail, name="dataset_detail"),
    path("datasets/<int:pk>/upload/<int:index>/", datasets.dataset_upload, name="dataset_upload"),
    path("datasets/<int:pk>/describe/", datasets.dataset_describe, name="dataset_describe"),
    path("datasets/<int:pk>/share/", datasets.dataset_share, name="dataset_share"),
    path("datasets/<int:pk>/delete/", datasets.dataset_delete, name="dataset_delete"),
    path("hosts/", hosts.host_list, name="host_list"),
    path("hosts/<int:pk>/drain/", hosts.host_drain, name="host_drain"),
    path("hosts/<int:pk>/undrain/", hosts.host_undrain, name="host_undrain"),
]
