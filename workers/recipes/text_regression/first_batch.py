"""What the model sees: the first batch of a run with the default settings, in tokens, as for text classification.

python -m workers.recipes.text_regression.first_batch FOLDER
"""

from __future__ import annotations

from workers.recipes.text_classification.first_batch import main

if __name__ == "__main__":
    main()
