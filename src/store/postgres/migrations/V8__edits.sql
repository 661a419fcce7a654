-- Seq and time of the newest edit of a message, whose content is in its row. None: it was never edited.
ALTER TABLE messages ADD COLUMN edited_seq bigint, ADD COLUMN edited_time bigint;
