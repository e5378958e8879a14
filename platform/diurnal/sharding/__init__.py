"""Where the tables of a model live: which rank holds which rows, and the model that is spread out in that way."""
