"""Pictures that a model is tried with: from chosen files to rows, and from rows back to what a page shows."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.utils.translation import gettext as _

from jobs.limits import in_bytes
from jobs.picture_datasets import TYPE_BYTES, content_type
from jobs.services import Refused
from workers.contract.trials import PICTURE_BYTES, PICTURES_BYTES, Row, TrialField, TrialForm


def rows_of(form: TrialForm, field: TrialField, files: Sequence[UploadedFile[Any]]) -> list[Row]:
    """A row per file, in base64. Nothing is decoded here. Raises Refused."""
    if not files:
        raise Refused({field.name: _("Choose a picture, or several.")})
    if len(files) > form.most_rows:
        raise Refused(
            {
                field.name: _("These are %(count)d pictures; at most %(most)d are taken at once.")
                % {"count": len(files), "most": form.most_rows}
            }
        )
    sizes = [file.size or 0 for file in files]
    for file, size in zip(files, sizes, strict=True):
        if size > PICTURE_BYTES:
            raise Refused(
                {
                    field.name: _("“%(name)s” has %(size)s, and at most %(most)s are taken: make it smaller.")
                    % {"name": file.name, "size": in_bytes(size), "most": in_bytes(PICTURE_BYTES)}
                }
            )
    if sum(sizes) > PICTURES_BYTES:
        raise Refused(
            {
                field.name: _(
                    "Together the pictures have %(size)s, and at most %(most)s are taken at once: choose fewer."
                )
                % {"size": in_bytes(sum(sizes)), "most": in_bytes(PICTURES_BYTES)}
            }
        )
    rows = []
    for file in files:
        data = file.read()
        if not content_type(data[:TYPE_BYTES]):
            raise Refused(
                {
                    field.name: _("“%(name)s” is no picture: it must be PNG, JPEG, WebP, BMP or GIF.")
                    % {"name": file.name}
                }
            )
        rows.append({field.name: base64.b64encode(data).decode("ascii")})
    return rows


def picture(rows: Sequence[Row], field: TrialField, number: int) -> tuple[bytes, str] | None:
    """The picture of row `number`, from 0, with its type; None if there is none."""
    if not 0 <= number < len(rows):
        return None
    data = base64.b64decode(rows[number].get(field.name, ""))
    kind = content_type(data[:TYPE_BYTES])
    return (data, kind) if kind else None
