-- Tokens that are refused although they have not expired. See docs/postgres.md.
CREATE TABLE revocations (
    user_id text COLLATE "C" NOT NULL,
    -- 1: all tokens issued before a time, 2: the token `name`, 3: those issued before a time that the device `name` uses,
    -- 4: none, the earlier ones of the user were taken back.
    kind smallint NOT NULL,
    name text COLLATE "C" NOT NULL,
    before_ms bigint NOT NULL,
    at_ms bigint NOT NULL,
    -- None: some of the tokens never expire.
    until_ms bigint,
    -- Above those of all revocations that were stored earlier.
    number bigint NOT NULL,
    PRIMARY KEY (user_id, kind, name)
);
CREATE INDEX revocations_by_number ON revocations (number);
CREATE INDEX revocations_by_end ON revocations (until_ms) WHERE until_ms IS NOT NULL;

-- Number of the newest revocation. Its row is locked by each change, so that numbers become visible in order.
CREATE TABLE revocation_number (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    number bigint NOT NULL
);
INSERT INTO revocation_number (number) VALUES (0);
