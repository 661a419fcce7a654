-- A row while an import fills the tables: nobody else may use them, also after one that was cut off. See docs/postgres.md.
CREATE TABLE import (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    began timestamptz NOT NULL DEFAULT now()
);
