-- Block lists of users, and the version of the last change. Its row is the lock of all changes, so versions become visible in order.
CREATE TABLE blocks (
    user_id text COLLATE "C" NOT NULL,
    other text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    -- In ms since 1970.
    time bigint NOT NULL,
    PRIMARY KEY (user_id, other)
);
CREATE INDEX blocks_by_version ON blocks (version);

CREATE TABLE block_version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
) WITH (fillfactor = 20);
INSERT INTO block_version (version) VALUES (0);
