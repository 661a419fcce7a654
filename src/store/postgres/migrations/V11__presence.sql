-- Whether others may see that the user is online: on or off. NULL: not set.
ALTER TABLE wishes ADD COLUMN presence text;
