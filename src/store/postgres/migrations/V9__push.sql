-- Messages that make push notices for the user, in a conversation and in all: all, mentions or none. NULL: no preference.
ALTER TABLE marks ADD COLUMN push text;
ALTER TABLE wishes ADD COLUMN push text;
