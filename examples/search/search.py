"""A full-text index of all conversations: from the start of their histories, and right through edits, recalls, prunings and
wishes of users.

Usage: search.py follow http://node1:7801,http://node2:7801 INDEX_FILE
       search.py find INDEX_FILE WORDS
The key of the admin API, where the nodes ask for one, is in the environment as TIDEGATE_API_KEY; it needs the scope content.
SEARCH_WISHES_SECONDS is the pause after each round of questions for the wishes of all users; 60 by default.
"""

import http.client
import json
import os
import sqlite3
import sys
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

TABLES = """
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, conversation TEXT, seq INTEGER, sender TEXT, UNIQUE (conversation, seq));
CREATE INDEX IF NOT EXISTS senders ON entries (sender);
CREATE TABLE IF NOT EXISTS wishes (user TEXT PRIMARY KEY, wanted INTEGER);
CREATE TABLE IF NOT EXISTS returned (user TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS pending (conversation TEXT PRIMARY KEY);
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5 (text);
"""


class Refused(Exception):
    """An answer that no repetition changes; `problem` is its JSON."""

    def __init__(self, problem):
        super().__init__(f"{problem.get('title')}: {problem.get('detail')}")
        self.problem = problem


def text_of(entry):
    """Returns the text of a message; None if it has none, or none any more."""
    return (entry.get("content") or {}).get("text")


def problem_of(error):
    """Returns the problem of an answer that is no success. One that no node has written, such as a proxy's page, is temporary."""
    try:
        problem = json.load(error)
    except (OSError, ValueError, http.client.HTTPException):
        problem = None
    return problem if isinstance(problem, dict) and "temporary" in problem else {"temporary": True}


class Tidegate:
    """Reads from any of the nodes, and from the next one when a node can't answer."""

    def __init__(self, addresses, key=None):
        self.addresses, self.key = list(addresses), key

    def copy(self):
        """Returns a client of its own for another thread."""
        return Tidegate(self.addresses, self.key)

    def open(self, path, headers=(), timeout=20):
        request = urllib.request.Request(self.addresses[0] + path, headers=dict(headers))
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        return urllib.request.urlopen(request, timeout=timeout)

    def next_node(self, wait=0.2):
        self.addresses.append(self.addresses.pop(0))
        time.sleep(wait)

    def get(self, path):
        """Returns an answer, and waits for it as long as it takes."""
        while True:
            wait = 0.2
            try:
                with self.open(path) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                problem = problem_of(error)
                if not problem["temporary"]:
                    raise Refused(problem) from None
                wait = problem.get("retryAfterMs", 200) / 1000
            except (OSError, ValueError, http.client.HTTPException):
                pass
            self.next_node(wait)

    def conversations(self, path):
        """Yields the keys of a list, page by page."""
        cursor = ""
        while True:
            page = self.get(f"{path}?limit=200{cursor}")
            yield from (it["conversation"] for it in page["conversations"])
            if "next" not in page:
                return
            cursor = f"&cursor={page['next']}"

    def history(self, conversation):
        """Yields the pages of a history, oldest first."""
        path = f"/v1/conversations/{urllib.parse.quote(conversation)}/messages"
        page = self.get(f"{path}?direction=forward&limit=100")
        # A page may have nothing but the numbers of what is gone.
        while page["messages"] or page["recalled"] or page["expired"]:
            yield page["messages"]
            if "newer" not in page:
                return
            page = self.get(f"{path}?cursor={page['newer']}&limit=100")

    def wish(self, user):
        """Returns "on", "off", or None if the user has not said, or was erased."""
        return self.get(f"/v1/users/{urllib.parse.quote(user)}")["settings"].get("search") or None


class Index:
    """The index in a file. Each change is a transaction, so a crash loses nothing and leaves nothing half done."""

    def __init__(self, file):
        # Both threads use it, one at a time.
        self.lock = threading.RLock()
        self.db = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        # What is removed is overwritten in the file, too.
        self.db.execute("PRAGMA secure_delete = ON")
        self.db.executescript(TABLES)
        if sqlite3.sqlite_version_info >= (3, 42):
            self.db.execute("INSERT INTO texts (texts, rank) VALUES ('secure-delete', 1)")

    def __enter__(self):
        self.lock.acquire()
        self.db.execute("BEGIN IMMEDIATE")
        return self

    def __exit__(self, error, *_):
        self.db.execute("COMMIT" if error is None else "ROLLBACK")
        self.lock.release()

    def rows(self, sql, *values):
        with self.lock:
            return self.db.execute(sql, values).fetchall()

    def state(self, name):
        found = self.rows("SELECT value FROM state WHERE name = ?", name)
        return found[0][0] if found else None

    def set_state(self, name, value):
        self.rows("INSERT OR REPLACE INTO state VALUES (?, ?)", name, value)

    def read_later(self, conversations):
        """Notes that these histories are to be read. One that is being read is read again: its row gets another number."""
        for conversation in conversations:
            self.rows("INSERT OR REPLACE INTO pending (rowid, conversation) VALUES (random(), ?)", conversation)

    def remove(self, condition, *values):
        self.rows(f"DELETE FROM texts WHERE rowid IN (SELECT id FROM entries WHERE {condition})", *values)
        self.rows(f"DELETE FROM entries WHERE {condition}", *values)

    def put(self, conversation, seq, sender, text):
        """Adds a message, or replaces it. One by a user who does not wish to be found is left out."""
        self.remove("conversation = ? AND seq = ?", conversation, seq)
        if text and self.rows("SELECT 1 FROM wishes WHERE user = ? AND wanted", sender):
            self.rows("INSERT INTO entries (conversation, seq, sender) VALUES (?, ?, ?)", conversation, seq, sender)
            self.rows("INSERT INTO texts (rowid, text) VALUES (last_insert_rowid(), ?)", text)

    def change(self, kind, data):
        """Does what an event says. An event that comes again has what holds now, so it may be done again."""
        conversation, text = data["conversation"], text_of(data)
        if kind == "tidegate.message.accepted":
            self.put(conversation, data["seq"], data.get("sender"), text)
        elif kind == "tidegate.message.edited":
            found = self.rows("SELECT sender FROM entries WHERE conversation = ? AND seq = ?", conversation, data["of"])
            sender = data.get("sender") or (found[0][0] if found else None)
            self.put(conversation, data["of"], sender, text)
        elif kind == "tidegate.message.recalled":
            self.remove("conversation = ? AND seq = ?", conversation, data["of"])
        elif kind == "tidegate.message.pruned":
            self.remove("conversation = ? AND seq <= ?", conversation, data["upTo"])

    def find(self, words):
        return self.rows(
            "SELECT conversation, seq, sender, text FROM texts JOIN entries ON id = texts.rowid WHERE texts MATCH ? ORDER BY rank, id",
            " ".join('"' + word.replace('"', '""') + '"' for word in words),
        )


class Indexer:
    """Fills an index: first with all histories, then with the events since before these were read."""

    def __init__(self, broker, index):
        self.broker, self.index = broker, index

    def begin(self):
        """Takes a cursor before any history is read: what is accepted from then on is in the stream."""
        for _, _, cursor in self.stream("from=now", None):
            if cursor:
                break
        conversations = list(self.broker.conversations("/v1/conversations"))
        with self.index:
            self.index.remove("TRUE")
            self.index.rows("DELETE FROM pending")
            self.index.read_later(conversations)
            self.index.set_state("cursor", cursor)

    def read_histories(self):
        """Reads all histories that are still to be read. A history has the newest content of its messages."""
        for number, conversation in self.index.rows("SELECT rowid, conversation FROM pending"):
            for page in self.broker.history(conversation):
                self.note_wishes(entry.get("sender") for entry in page)
                with self.index:
                    for entry in page:
                        if entry["kind"] == "message":
                            self.index.put(conversation, entry["seq"], entry["sender"], text_of(entry))
            with self.index:
                self.index.rows("DELETE FROM pending WHERE rowid = ?", number)

    def note_wishes(self, users):
        """Asks for the wishes of users that are not known yet."""
        for user in {user for user in users if user}:
            if not self.index.rows("SELECT 1 FROM wishes WHERE user = ?", user):
                wanted = self.broker.wish(user) != "off"
                with self.index:
                    self.index.rows("INSERT OR IGNORE INTO wishes VALUES (?, ?)", user, wanted)

    def follow_wishes(self, seconds):
        """Asks again for the wishes of all users of the index, for ever: no event tells of them."""
        while True:
            self.read_returned()
            time.sleep(seconds)
            for user, was_wanted in self.index.rows("SELECT user, wanted FROM wishes"):
                self.follow_wish(user, was_wanted)

    def follow_wish(self, user, was_wanted):
        # Only "on" ends a withdrawal: an erasure of the user removes the wish, too.
        if self.broker.wish(user) == ("off" if was_wanted else "on"):
            self.change_wish(user, not was_wanted)

    def change_wish(self, user, wanted):
        with self.index:
            self.index.rows("UPDATE wishes SET wanted = ? WHERE user = ?", wanted, user)
            if wanted:
                self.index.rows("INSERT OR IGNORE INTO returned VALUES (?)", user)
            else:
                self.index.rows("DELETE FROM returned WHERE user = ?", user)
                self.index.remove("sender = ?", user)
        self.read_returned()

    def read_returned(self):
        """Notes the histories of users who wish to be found again. They are listed after the wish is stored: what comes to a
        conversation that is not in the list is indexed by its event."""
        for (user,) in self.index.rows("SELECT user FROM returned"):
            conversations = list(self.broker.conversations(f"/v1/users/{urllib.parse.quote(user)}/conversations"))
            with self.index:
                self.index.read_later(conversations)
                self.index.rows("DELETE FROM returned WHERE user = ?", user)
        # They are read between two batches of events, or with the next comment.

    def stream(self, query, cursor):
        """Yields (type, event, None), (None, None, cursor) for an `id:` line, and (None, None, None) for a comment, for ever, from
        any node."""
        while True:
            try:
                headers = [("Last-Event-ID", cursor)] if cursor else []
                # A node that has nothing else to send sends a comment after 15 s.
                with self.broker.open(f"/v1/events/stream?content=true&{query}", headers) as lines:
                    for line in lines:
                        name, _, value = line.decode().rstrip("\n").partition(": ")
                        if name == "event":
                            kind = value
                        elif name == "data":
                            yield kind, json.loads(value), None
                        elif name == "id":
                            cursor = value
                            yield None, None, cursor
                        elif line.startswith(b":"):
                            yield None, None, None
            except urllib.error.HTTPError as error:
                problem = problem_of(error)
                if not problem["temporary"]:
                    raise Refused(problem) from None
            except (OSError, ValueError, http.client.HTTPException):
                pass
            self.broker.next_node()

    def follow(self):
        """Indexes what the stream has. Events are done with the `id:` line that follows them: those after it come again."""
        events = []
        for kind, event, cursor in self.stream("from=oldest", self.index.state("cursor")):
            if kind == "gap":
                # It was away for longer than the feed is kept: recalls may be among what is missing.
                return
            if kind:
                events.append((kind, event["data"]))
                continue
            if cursor:
                self.note_wishes(self.sender(kind, data) for kind, data in events)
                with self.index:
                    for kind, data in events:
                        self.index.change(kind, data)
                    self.index.set_state("cursor", cursor)
                events.clear()
            # Those of users who wish to be found again.
            self.read_histories()

    def sender(self, kind, data):
        """Returns the sender of the message of an event. An edit does not have it, so it is read."""
        if kind == "tidegate.message.edited" and "content" in data:
            path = f"/v1/conversations/{urllib.parse.quote(data['conversation'])}/messages/{data['of']}"
            try:
                data["sender"] = self.broker.get(path).get("sender")
            except Refused:
                # It was pruned meanwhile: an event of that follows.
                data.pop("content")
        return data.get("sender")

    def follow_wishes_or_end(self, seconds):
        """Follows wishes, and ends the program when that fails: without it a withdrawn message would stay in the index."""
        try:
            self.follow_wishes(seconds)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def run(self, wishes_seconds):
        other = Indexer(self.broker.copy(), self.index)
        threading.Thread(target=other.follow_wishes_or_end, args=[wishes_seconds], daemon=True).start()
        if self.index.state("cursor") is None:
            self.begin()
        while True:
            self.read_histories()
            print("following", flush=True)
            self.follow()
            self.begin()


def main():
    match sys.argv[1:]:
        case ["follow", nodes, file]:
            broker = Tidegate(nodes.split(","), os.environ.get("TIDEGATE_API_KEY"))
            Indexer(broker, Index(file)).run(float(os.environ.get("SEARCH_WISHES_SECONDS", "60")))
        case ["find", file, *words] if words:
            for conversation, seq, sender, text in Index(file).find(words):
                print(f"{conversation}/{seq} {sender}: {text}")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
