-- The feed: which records were archived, by dense numbers for each partition. See docs/postgres.md.
-- Nodes of earlier versions leave these columns as they are, by which later ones see that numbers are missing.
ALTER TABLE partitions
    -- Number of the newest entry.
    ADD COLUMN feed_newest bigint NOT NULL DEFAULT 0,
    -- Lowest number that retention has kept.
    ADD COLUMN feed_oldest bigint NOT NULL DEFAULT 1,
    -- Bytes of all batches ever written, and of those that were removed.
    ADD COLUMN feed_bytes bigint NOT NULL DEFAULT 0,
    ADD COLUMN feed_removed_bytes bigint NOT NULL DEFAULT 0,
    -- Log offset up to which the records have numbers. None: the feed has not begun.
    ADD COLUMN feed_offset bigint;

-- One row for each archived batch that has entries.
CREATE TABLE feed (
    partition integer NOT NULL,
    -- Number of its last entry.
    last bigint NOT NULL,
    -- Number of entries.
    entries bigint NOT NULL,
    -- Latest receive time of an entry, in ms since 1970.
    time bigint NOT NULL,
    -- Value of feed_bytes after the batch.
    bytes_end bigint NOT NULL,
    -- Conversation, seq, kind and time of each entry; the form is that of the embedded store.
    batch bytea NOT NULL,
    PRIMARY KEY (partition, last)
);
-- Small numbers, which compression only costs time.
ALTER TABLE feed ALTER COLUMN batch SET STORAGE EXTERNAL;

-- How far each consumer of the feed is; the bytes are its own.
CREATE TABLE feed_cursors (
    consumer text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    cursor bytea NOT NULL,
    PRIMARY KEY (consumer, partition)
) WITH (fillfactor = 50);
