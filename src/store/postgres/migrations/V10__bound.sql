-- Highest entry that the user can read, with the messages and the user's own messages up to it. 0: no bound.
ALTER TABLE marks ADD COLUMN bound_seq bigint NOT NULL DEFAULT 0, ADD COLUMN bound_messages bigint NOT NULL DEFAULT 0,
    ADD COLUMN bound_own bigint NOT NULL DEFAULT 0;
