"""One module per page. The first line of a view fetches the row for this user: what is not theirs is not there."""
