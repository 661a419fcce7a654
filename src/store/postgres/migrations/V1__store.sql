-- The archive of all partitions of the log, the floors of numbers, and what users keep. See docs/postgres.md.
-- Text compares by bytes, as ids do in the code. Numbers that the code keeps without sign are stored bit by bit.

-- Where each partition of the log stands; one row is one lock.
CREATE TABLE partitions (
    partition integer PRIMARY KEY,
    topic uuid NOT NULL,
    fence uuid NOT NULL,
    log_offset bigint NOT NULL,
    last_hash uuid NOT NULL,
    ledger_version integer NOT NULL,
    dedup_window bigint NOT NULL,
    keys_from bigint NOT NULL
) WITH (fillfactor = 20);

CREATE TABLE heads (
    conversation text COLLATE "C" NOT NULL,
    last_seq bigint NOT NULL,
    messages bigint NOT NULL,
    pruned_to bigint NOT NULL,
    deleted_seq bigint NOT NULL,
    -- A JSON object; none = no settings. Not jsonb, which refuses some texts.
    settings text,
    -- How many are in now.
    members bigint NOT NULL,
    PRIMARY KEY (conversation)
) PARTITION BY HASH (conversation);

CREATE TABLE messages (
    conversation text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    ordinal bigint NOT NULL,
    own bigint NOT NULL,
    log_offset bigint NOT NULL,
    recalled_seq bigint,
    recalled_time bigint,
    -- None = not a message.
    sender text COLLATE "C",
    -- The record without content and origin (record.proto).
    record bytea NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (conversation, seq)
) PARTITION BY HASH (conversation);

CREATE TABLE members (
    conversation text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    role smallint NOT NULL,
    muted boolean NOT NULL,
    joined_seq bigint NOT NULL,
    left_seq bigint NOT NULL,
    sent bigint NOT NULL,
    joined_messages bigint NOT NULL,
    left_messages bigint NOT NULL,
    stays bigint NOT NULL,
    PRIMARY KEY (conversation, user_id)
) PARTITION BY HASH (conversation);

CREATE TABLE stays (
    conversation text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    joined_seq bigint NOT NULL,
    left_seq bigint NOT NULL,
    joined_messages bigint NOT NULL,
    left_messages bigint NOT NULL,
    PRIMARY KEY (conversation, user_id, left_seq)
);

CREATE TABLE devices (
    conversation text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    device text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    next_n bigint NOT NULL,
    PRIMARY KEY (conversation, user_id, device)
) PARTITION BY HASH (conversation);

-- The conversations of a user: `members` from the other side. Written by archives only.
CREATE TABLE memberships (
    user_id text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    PRIMARY KEY (user_id, conversation)
) PARTITION BY HASH (user_id);

-- What users keep of conversations. Written by marks only.
CREATE TABLE marks (
    user_id text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    seq bigint NOT NULL DEFAULT 0,
    messages bigint NOT NULL DEFAULT 0,
    own bigint NOT NULL DEFAULT 0,
    cleared_seq bigint NOT NULL DEFAULT 0,
    cleared_messages bigint NOT NULL DEFAULT 0,
    cleared_own bigint NOT NULL DEFAULT 0,
    hidden bytea NOT NULL DEFAULT '',
    PRIMARY KEY (user_id, conversation)
) PARTITION BY HASH (user_id);

CREATE TABLE wishes (
    user_id text COLLATE "C" PRIMARY KEY,
    ack_timeout_ms bigint NOT NULL DEFAULT 0,
    ack_tries bigint NOT NULL DEFAULT 0,
    heartbeat_ms bigint NOT NULL DEFAULT 0,
    unread text,
    retention text,
    search text
) WITH (fillfactor = 80);

-- Dedup keys, one table a week (since 1970, by this server's clock), made by the first archive of that week.
CREATE TABLE keys (
    partition integer NOT NULL,
    hash uuid NOT NULL,
    week integer NOT NULL,
    body_hash uuid NOT NULL,
    seq bigint NOT NULL,
    time bigint NOT NULL,
    log_offset bigint NOT NULL,
    -- The number of a code; 0 = accepted.
    refused integer NOT NULL,
    PRIMARY KEY (partition, hash, week)
) PARTITION BY LIST (week);

-- Up to which offset a week has keys of a partition: at or below `partitions.keys_from` they are forgotten.
CREATE TABLE key_weeks (
    week integer NOT NULL,
    partition integer NOT NULL,
    below bigint NOT NULL,
    PRIMARY KEY (week, partition)
) WITH (fillfactor = 20);

CREATE TABLE floors (
    key text COLLATE "C" PRIMARY KEY,
    floor bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE floor_epoch (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL
) WITH (fillfactor = 20);
INSERT INTO floor_epoch (epoch) VALUES (0);

-- Rows that change often leave room on their page, so that a change touches no index.
DO $$
DECLARE
    kind record;
BEGIN
    FOR kind IN
        SELECT * FROM (VALUES
            ('messages', 32, 100), ('heads', 16, 80), ('members', 16, 80), ('devices', 16, 80),
            ('memberships', 16, 100), ('marks', 16, 80)
        ) AS kinds(name, parts, filled)
    LOOP
        FOR part IN 0 .. kind.parts - 1 LOOP
            EXECUTE format(
                'CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s) WITH (fillfactor = %s)',
                kind.name || '_' || part, kind.name, kind.parts, part, kind.filled
            );
        END LOOP;
    END LOOP;
END
$$;
