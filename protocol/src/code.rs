//! Error and close codes: number, name, whether it is temporary, when to reconnect, description and cure.
//!
//! 1xxx protocol, 2xxx auth, 3xxx close and reconnect, 35xx close and never reconnect, 4xxx flow, order, load, 5xxx the
//! application's own. `docs/errors.md` and the tables of client libraries are generated from this file.

use crate::pb;
use std::{collections::BTreeMap, time::Duration};

/// Whether and when a closed client may reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnect {
    /// Immediately, with the usual jitter.
    Now,
    /// After the time that the Close frame names.
    After,
    /// Never automatically: without a change the same attempt would end the same way.
    Never,
}

impl From<Reconnect> for pb::Reconnect {
    fn from(reconnect: Reconnect) -> Self {
        match reconnect {
            Reconnect::Now => Self::Now,
            Reconnect::After => Self::After,
            Reconnect::Never => Self::Never,
        }
    }
}

/// Code from 5000 to 5999: the application's own, which the broker passes on and understands nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppCode(u16);

impl AppCode {
    /// Lowest number.
    pub const FIRST: u16 = 5_000;
    /// Highest number.
    pub const LAST: u16 = 5_999;

    /// Returns the code with this number, `None` if it is not one of the application's.
    pub const fn new(number: u16) -> Option<Self> {
        match number {
            Self::FIRST..=Self::LAST => Some(Self(number)),
            _ => None,
        }
    }

    /// Returns the number on the wire.
    pub const fn number(self) -> u16 {
        self.0
    }
}

macro_rules! codes {
    ($($number:literal $variant:ident $name:literal $temporary:literal $reconnect:ident $what:literal $cure:literal)*) => {
        /// Code of an `Error` or `Close` frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $what] $variant,)*
            /// The application refused the message with a code of its own.
            Application(AppCode),
        }

        impl Code {
            /// All codes of the broker, in order; those of the application are left out.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the number on the wire.
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Application(code) => code.number(),
                }
            }

            /// Returns the name on the wire and in the docs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Application(_) => "APPLICATION",
                }
            }

            /// Returns whether the same request may succeed later without a change.
            pub const fn temporary(self) -> bool {
                match self {
                    $(Self::$variant => $temporary,)*
                    Self::Application(_) => false,
                }
            }

            /// Returns when a client may reconnect after a close with this code.
            pub const fn reconnect(self) -> Reconnect {
                match self {
                    $(Self::$variant => Reconnect::$reconnect,)*
                    Self::Application(_) => Reconnect::Never,
                }
            }

            /// Returns a one-sentence description of the failure.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$variant => $what,)*
                    Self::Application(_) => "The application refused the message with a code of its own.",
                }
            }

            /// Returns the remedy for the client or its operator.
            pub const fn cure(self) -> &'static str {
                match self {
                    $(Self::$variant => $cure,)*
                    Self::Application(_) => "Show the message to the user; the application defines its codes.",
                }
            }

            /// Returns the code with this number, `None` if there is none.
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => match AppCode::new(number) {
                        Some(code) => Some(Self::Application(code)),
                        None => None,
                    },
                }
            }
        }
    };
}

codes! {
    1000 Malformed "MALFORMED" false Never "A frame could not be decoded." "Check the framing and the schema version of the client."
    1001 FrameTooLarge "FRAME_TOO_LARGE" false Never "A frame claims more bytes than the limit in Welcome." "Send smaller frames; put large things elsewhere and send a reference."
    1002 Unsupported "UNSUPPORTED" false Never "The broker does not know this kind of frame." "Check the broker's version and, for `watch`, its settings `limits.watched_max` and `limits.watch_direct`; update the broker, or do not send this frame."
    1003 BadState "BAD_STATE" false Never "The frame is not allowed now: Hello comes first, and only once." "Wait for Welcome before anything else; send Hello once."
    1004 HandshakeTimeout "HANDSHAKE_TIMEOUT" true Now "No complete Hello within the time allowed." "Send Hello immediately after connecting."
    1005 FrameTimeout "FRAME_TIMEOUT" true Now "A frame was started but not completed in time." "Send each frame in one piece; check the network."
    1006 BadVersion "BAD_VERSION" false Never "The protocol version is not supported." "Use version 1."
    1007 BadId "BAD_ID" false Never "An id or a conversation key is not well formed." "Ids match [A-Za-z0-9_.-]{1,64}, and are not `.` or `..`; take conversation keys from the broker."
    1008 UnknownFraming "UNKNOWN_FRAMING" false Never "The first bytes match no framing: WebSocket, TG/1 or JSON lines." "Begin with GET (WebSocket), TG/1 and a newline (protobuf frames) or { (JSON lines)."
    1009 BadUpgrade "BAD_UPGRADE" false Never "The HTTP request is not a supported WebSocket upgrade." "Send a WebSocket upgrade with sub-protocol tidegate.v1.json or tidegate.v1.proto."
    1010 BadContent "BAD_CONTENT" false Never "A Send has no content or no destination." "Set content, and either conversation or toUser."
    1011 TooManyFrames "TOO_MANY_FRAMES" true After "Frames arrive faster than the broker takes them, or too many before welcome." "Send hello first and wait for welcome; read what the broker sends; ping no more often than the heartbeat."
    1012 TlsRequired "TLS_REQUIRED" false Never "This port accepts connections with TLS alone." "Connect with tls:// or wss://."
    1013 CursorInvalid "CURSOR_INVALID" false Never "The cursor is damaged, or belongs to another list or other filters." "Take the cursor from the last page of the same list, with the same filters; begin without one."

    2001 TokenInvalid "TOKEN_INVALID" false Never "The token's signature, algorithm or claims are not accepted." "Get a new token from your backend (or from `tidegate token USER`)."
    2002 TokenExpired "TOKEN_EXPIRED" false Never "The token has expired (`exp`)." "Get a new token and connect again."
    2003 Forbidden "FORBIDDEN" false Never "The user may not do this." "Ask the owner of the conversation, or use a token with that right; resend the refused content under a new msgId."
    2004 NotAMember "NOT_A_MEMBER" false Never "The user is not in this conversation." "Join first, or have an admin add the user; resend the refused content under a new msgId."
    2005 DeviceMismatch "DEVICE_MISMATCH" false Never "The token names another device than Hello." "Send the device that the token names in `dev`."
    2006 OriginRefused "ORIGIN_REFUSED" false Never "This web origin is not on the allow-list." "Add the origin to `listen.origins`."
    2007 KeyInvalid "KEY_INVALID" false Never "The admin port needs a key, and the request has none that is valid." "Send `Authorization: Bearer KEY`; with `tidegate`: --key-file FILE, or TIDEGATE_KEY in the environment. Keys are made on the node's host by `tidegate key add`."
    2008 ScopeMissing "SCOPE_MISSING" false Never "The key does not have the scope that the request needs." "Use a key with that scope: `tidegate key add NAME --scope SCOPE` on the node's host."

    2010 TokenRevoked "TOKEN_REVOKED" false Never "The token was revoked." "Get a new token from your backend, and sign in again if it refuses one."
    2011 TokenNotNewer "TOKEN_NOT_NEWER" false Never "The token of a refresh does not end later than the one in force." "Send a token that ends later; the connection continues until its own ends."
    2012 Banned "BANNED" false Never "This user, device or network address is banned." "Wait if the frame names a time; otherwise ask the operator, who lifts it with DELETE /v1/bans/{subject}."

    3000 Bye "BYE" true Now "The client sent Bye." "Nothing to do."
    3001 Draining "DRAINING" true After "The node is draining for a planned stop." "Reconnect after the given time, to one of the alternates."
    3002 Slow "SLOW" true Now "The client reads more slowly than the broker sends." "Reconnect, then pull from your positions; read faster."
    3003 HeartbeatMissed "HEARTBEAT_MISSED" true Now "Nothing was received from the client for two and a half heartbeats." "Send a Ping every heartbeat interval when idle."
    3004 Internal "INTERNAL" true After "An internal error of the broker ended this connection or this query; others are unaffected." "Reconnect; report it if it happens again."
    3005 Overloaded "OVERLOADED" true After "The node is at its limit of connections or memory." "Reconnect after the given time, if possible to another node."
    3006 Resync "RESYNC" true Now "An append failed, so later messages of this connection can't be sent in order." "Reconnect and send again from the first unanswered id."
    3007 LeaseLost "LEASE_LOST" true Now "The node lost its lease in the cluster." "Reconnect; another node takes over."
    3008 TooManyFromAddress "TOO_MANY_FROM_ADDRESS" true After "Too many connections from this address." "Close some, or raise `limits.conns_per_ip`."
    3009 Closed "CLOSED" true Now "The node closed this connection for an internal reason." "Reconnect."
    3010 TooManyDevices "TOO_MANY_DEVICES" true After "The user has the maximum number of connected devices." "Disconnect one, or reconnect with the name of one; operators: raise `limits.devices_per_user`."

    3500 Replaced "REPLACED" false Never "A newer login of the same user took the place of this one: with the same device, or with another one where the node allows fewer (`login.devices`)." "Use one connection per device; name devices differently. Log in again only if the user asks."
    3501 Kicked "KICKED" false Never "An administrator ended this connection." "Ask the administrator."
    3502 TooManyErrors "TOO_MANY_ERRORS" false Never "Too many refused frames on this connection. One is forgotten for each accepted send, and each 10 s." "Fix the client; check the codes of its refused frames."

    4000 Conflict "CONFLICT" false Never "This msgId was used before for another content." "Use a new id for a new message."
    4001 OrderBroken "ORDER_BROKEN" true Now "A predecessor of this message never reached the log." "Send again from the first unanswered id."
    4002 OrderWindowFull "ORDER_WINDOW_FULL" true Now "Too many messages are held until the expected one arrives; reading stops." "Send the expected id first."
    4003 OrderSkipped "ORDER_SKIPPED" false Never "The chain skipped this id after waiting for it." "Resend the content under a new id."
    4004 BadLink "BAD_LINK" false Never "A chained message names itself or a used id as its successor." "Give every message a fresh nextId."
    4005 NotFound "NOT_FOUND" false Never "There is no such group or conversation." "Create it first; resend the refused content under a new msgId."
    4006 ContentTooLarge "CONTENT_TOO_LARGE" false Never "The content is larger than the limit in Welcome." "Send less, or a reference."
    4007 AlreadyExists "ALREADY_EXISTS" false Never "The id is already taken." "Use another id."
    4008 TooManyMembers "TOO_MANY_MEMBERS" false Never "One request names too many users." "Send at most 1,000 users per request."
    4010 BusUnavailable "BUS_UNAVAILABLE" true After "The durable log does not accept messages at the moment." "Try again with the same id after the given time."
    4011 ArchiveBehind "ARCHIVE_BEHIND" true After "The archive lags by half of the log's retention, so no messages are accepted." "Try again with the same id after the given time; operators: find the partition with `tidegate owners` and repair the store."
    4012 Unknown "UNKNOWN" true Now "It is not known yet whether the message was accepted." "Send again with the same id and attempt + 1."
    4013 Busy "BUSY" true After "Too many requests of this connection are pending." "Wait for answers before sending more."
    4014 RateLimited "RATE_LIMITED" true After "A limit for this user, device or conversation is reached." "Slow down; try again after the given time."
    4015 NotYet "NOT_YET" true After "The requested state is not available yet." "Try again after the given time."
    4016 TooManyRooms "TOO_MANY_ROOMS" false Never "This connection has joined the maximum number of rooms." "Leave one first."
    4017 StoreUnavailable "STORE_UNAVAILABLE" true After "The store can't be read at the moment." "Repeat the request after the given time; sends and pushes continue."
    4018 TooLate "TOO_LATE" false Never "The time limit for this request has passed." "Ask an owner or admin of the group; operators set the limit with `limits.recall_ms`."
    4019 TooManyHidden "TOO_MANY_HIDDEN" false Never "The user has hidden the maximum number of single entries of this conversation." "Clear the history up to a seq; cleared entries do not count."
    4020 Muted "MUTED" false Never "The user is muted in this group." "Wait until an admin of the group ends the mute, then resend the content under a new id."
    4021 BadSetting "BAD_SETTING" false Never "A setting or its value is unknown." "Use the names and values of docs/http.md (groups and users) and of protocol/SPEC.md section 3 (settings of a login)."
    4022 AuditUnavailable "AUDIT_UNAVAILABLE" true After "The change can't be recorded in the audit log, so it was not made." "Repair the disk of the audit file (admin.audit_file), then send the request again; SIGTERM still drains the node."
    4023 LeftOut "LEFT_OUT" false Never "The live room gets more messages than it passes on, and this one was left out." "Nothing to do; send later what is still of interest, under a new msgId. Operators: `rooms.rate`, and `PUT /v1/users/{user}/prio` for senders that matter."
    4024 TooManyWatches "TOO_MANY_WATCHES" false Never "This connection, or its user on this node, watches the maximum number of conversations." "End a watch first: one connection has at most 32, and one user `limits.watches_per_user` on a node."
    4030 TooManyRevocations "TOO_MANY_REVOCATIONS" false Never "The user, or the cluster, has the maximum number of revocations." "Revoke all tokens of the user with `before`, which replaces older revocations; set `auth.max_lifetime_s`, so that they end."
    4031 HookUnavailable "HOOK_UNAVAILABLE" true After "The application, which decides about this request, gave no answer." "Try again after the given time; operators: check the server of the hook, and the log of the node."
    4032 TooManyBlocks "TOO_MANY_BLOCKS" false Never "The block list of the user is full." "Remove entries: at most 10,000 users can be blocked."
    4033 TooManyBans "TOO_MANY_BANS" false Never "The cluster has the maximum number of bans or of allowed networks." "Lift some, or ban wider networks."
    4034 Suspended "SUSPENDED" true After "This device, or its user, may not send for a while." "Send again with the same id after the given time; operators: `GET /v1/suspensions` says why, DELETE lifts it."
    4035 RoomClosed "ROOM_CLOSED" false Never "The live room is closed." "Join again only if the user asks; operators: `GET /v1/rooms/{room}` says why, PATCH with `closed` = false opens it."
}

impl Code {
    /// Returns the code with this number or name, as people write it; `None` if there is none.
    pub fn named(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(number) => Self::from_number(number),
            Err(_) => Self::ALL.iter().find(|code| code.name() == text).copied(),
        }
    }
}

impl Code {
    /// Returns the status for a WebSocket close frame: from RFC 6455 section 7.4, or our own number if it is allowed.
    pub const fn ws_close(self) -> u16 {
        match self {
            Self::Bye => 1000,
            Self::FrameTooLarge => 1009,
            // Refuses single messages only; a frame may have no number above 4999.
            Self::Application(_) => 1008,
            _ if self.number() < 2000 => 1002,
            _ if self.number() < 3000 => 1008,
            _ => self.number(),
        }
    }

    /// Builds the body of an `Error` frame. An empty `message` is replaced by [`Code::what`].
    pub fn error(self, message: &str) -> pb::Error {
        pb::Error {
            code: u32::from(self.number()),
            name: self.name().to_owned(),
            message: if message.is_empty() { self.what() } else { message }.to_owned(),
            temporary: self.temporary(),
            retry_after_ms: if matches!(self.reconnect(), Reconnect::After) { RETRY_AFTER_MS } else { 0 },
            detail: self.detail(),
        }
    }

    /// Returns the details of each error with this code: `app` marks refusals by the application.
    fn detail(self) -> BTreeMap<String, String> {
        match self {
            Self::Application(code) => BTreeMap::from([("app".to_owned(), code.number().to_string())]),
            _ => BTreeMap::new(),
        }
    }

    /// Builds the body of an `Error` frame that names the time to wait, rounded up to at least 1 ms.
    pub fn error_after(self, message: &str, wait: Duration) -> pb::Error {
        let ms = wait.as_nanos().div_ceil(1_000_000);
        pb::Error { retry_after_ms: u32::try_from(ms).unwrap_or(u32::MAX).max(1), ..self.error(message) }
    }

    /// Builds the body of a `Close` frame. An empty `reason` is replaced by [`Code::what`].
    pub fn close(self, reason: &str, after_ms: u32) -> pb::Close {
        pb::Close {
            code: u32::from(self.number()),
            name: self.name().to_owned(),
            reason: if reason.is_empty() { self.what() } else { reason }.to_owned(),
            reconnect: pb::Reconnect::from(self.reconnect()) as i32,
            after_ms,
        }
    }
}

/// Default wait that a temporary refusal asks of the client, in ms.
pub const RETRY_AFTER_MS: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_number_and_by_name() {
        for text in ["4005", "NOT_FOUND"] {
            assert_eq!(Code::named(text), Some(Code::NotFound), "{text}");
        }
        for text in ["", "0", "99999999", "-1", "not_found", "NOT FOUND"] {
            assert_eq!(Code::named(text), None, "{text}");
        }
    }

    #[test]
    fn codes_from_5000_to_5999_are_those_of_the_application() {
        for number in [5_000, 5_001, 5_999] {
            let code = Code::from_number(number).unwrap();
            assert_eq!((code, code.number()), (Code::Application(AppCode::new(number).unwrap()), number));
            assert_eq!(
                (code.temporary(), code.reconnect(), code.ws_close()),
                (false, Reconnect::Never, 1008)
            );
            assert_eq!(Code::named(&number.to_string()), Some(code));
        }
        assert_eq!([4_999, 6_000].map(Code::from_number), [None, None]);
        assert!(Code::ALL.iter().all(|code| !matches!(code, Code::Application(_))));
    }

    #[test]
    fn codes_are_ascending_and_unique() {
        for pair in Code::ALL.windows(2) {
            assert!(pair[0].number() < pair[1].number(), "{pair:?}");
        }
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), Some(*code));
            assert!(code.name().bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{code:?}");
            assert!(!code.cure().is_empty() && !code.what().is_empty());
        }
    }

    #[test]
    fn websocket_close_statuses_are_allowed_on_the_wire() {
        for code in Code::ALL {
            let ws = code.ws_close();
            assert!(matches!(ws, 1000 | 1002 | 1008 | 1009 | 3000..=4999), "{code:?} {ws}");
        }
    }
}
