-- What the guard must remember: rules, bans and the like. See docs/postgres.md.
CREATE TABLE guard (
    -- Nodes keep rows of kinds that they do not know, and skip them.
    kind smallint NOT NULL,
    name text COLLATE "C" NOT NULL,
    -- None: the entry was removed, and the row says so until its end.
    value bytea,
    -- In ms since 1970. None: it has no end.
    until_ms bigint,
    -- Above those of all rows that were changed earlier.
    version bigint NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX guard_by_version ON guard (version);
CREATE INDEX guard_by_end ON guard (kind, until_ms) WHERE until_ms IS NOT NULL;

-- Number of rows of each kind.
CREATE TABLE guard_counts (
    kind smallint PRIMARY KEY,
    entries bigint NOT NULL
) WITH (fillfactor = 20);

-- Version of the last change. Its row is the lock of all changes, so versions become visible in order.
CREATE TABLE guard_version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
) WITH (fillfactor = 20);
INSERT INTO guard_version (version) VALUES (0);
