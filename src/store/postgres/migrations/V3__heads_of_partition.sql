-- Retention looks through the heads of one partition of the log at a time, most often only at those of groups with settings.
-- None = written before this column was there: anybody's, until the next change.
ALTER TABLE heads ADD COLUMN partition integer;
CREATE INDEX heads_of_partition ON heads (partition, conversation);
CREATE INDEX heads_with_settings ON heads (partition, conversation) WHERE settings IS NOT NULL;
