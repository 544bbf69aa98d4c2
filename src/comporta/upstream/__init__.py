"""The object that joins the others: how an upstream may be used, said once, obeyed by every worker."""
