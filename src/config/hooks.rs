//! Section `[hooks]`: questions to the application's own server.

use std::{path::PathBuf, time::Duration};

use hyper::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_protocol::id::check_id;

/// Questions to the application's own server, by signed HTTP requests: who a credential is, who may write where, and
/// what is written; see docs/hooks.md.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct HooksConfig {
    /// URL that turns a credential which is no token of this node into a user. Empty: such credentials are refused.
    pub login_url: String,
    /// Longest time of one question about a credential. Without an answer the login is refused, to be tried again.
    pub login_timeout_ms: u64,
    /// Names of the cookies of a WebSocket upgrade that hooks.login_url gets, so that a page logs in without a token. They
    /// are taken from pages of listen.origins only, which has to name their origins.
    pub login_cookies: Vec<String>,
    /// URL that decides whether a user may join a live room, write to a conversation or start one. Empty: everybody may.
    pub allow_url: String,
    /// What happens without a valid answer of hooks.allow_url: `open` allows, `closed` refuses with HOOK_UNAVAILABLE.
    /// Has to be set with that URL.
    pub allow_fail: String,
    /// Questions for hooks.allow_url: `join` a live room, `write` to a conversation, `start` a direct conversation that
    /// has no message yet; not by default: `signal` to a conversation, `recall` a message.
    pub allow_actions: Vec<String>,
    /// Longest time of one such question, all waits included; less than timing.reply_ms if `write` or `start` are asked.
    pub allow_timeout_ms: u64,
    /// Time for which an answer holds that names no `ttlMs`; at most one minute.
    pub allow_ttl_ms: u64,
    /// URL that decides about messages and edits of clients before they are accepted, and may replace their content. Empty:
    /// they are accepted as they are.
    pub before_url: String,
    /// What happens without a valid answer of hooks.before_url: `open` accepts the message with the flag `unchecked`, `closed`
    /// refuses it with HOOK_UNAVAILABLE. Has to be set with that URL.
    pub before_fail: String,
    /// Live rooms whose messages hooks.before_url is asked about, such as `r:hall`, or `r:news.*` for all that begin so; none by
    /// default.
    pub before_rooms: Vec<String>,
    /// Longest time of one such question, all waits included; less than timing.reply_ms, together with hooks.allow_timeout_ms
    /// if both are asked about a message.
    pub before_timeout_ms: u64,
    /// File with the secret that signs the requests, mode 600: one or two lines `whsec_…`, each with the base64 of 24 to
    /// 64 random bytes. Has to be set with a URL.
    pub secret_file: PathBuf,
    /// PEM file of the authorities that signed the certificates of the URLs. Empty: those of the system.
    pub ca_file: PathBuf,
    /// Whether the URLs may be `http` to another machine. Who can change that traffic can log in as any user.
    pub insecure: bool,
    /// Most requests to one URL at a time.
    pub in_flight_max: usize,
    /// Most requests to one URL that wait for others; further ones fail at once.
    pub waiting_max: usize,
}

/// Question whose answer decides whether a user may do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllowAction {
    /// Joins a live room.
    Join,
    /// Writes to a conversation.
    Write,
    /// Writes the first message of a direct conversation.
    Start,
    /// Sends a signal, such as that the user is typing.
    Signal,
    /// Takes a message back for all users.
    Recall,
}

/// Actions that are asked about unless the settings name others.
const DEFAULT_ACTIONS: [AllowAction; 3] = [AllowAction::Join, AllowAction::Write, AllowAction::Start];

/// Most names of cookies.
const COOKIES_MAX: usize = 8;

/// Most names of rooms.
const ROOMS_MAX: usize = 64;

/// Longest name of a cookie.
const COOKIE_NAME_BYTES_MAX: usize = 64;

impl AllowAction {
    /// All actions.
    pub const ALL: [Self; 5] = [Self::Join, Self::Write, Self::Start, Self::Signal, Self::Recall];

    /// Returns the name in the settings and in requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Write => "write",
            Self::Start => "start",
            Self::Signal => "signal",
            Self::Recall => "recall",
        }
    }
}

const FAIL_OPEN: &str = "open";
const FAIL_CLOSED: &str = "closed";

impl Default for HooksConfig {
    fn default() -> Self {
        Self {
            login_url: String::new(),
            login_timeout_ms: 2_000,
            login_cookies: Vec::new(),
            allow_url: String::new(),
            allow_fail: String::new(),
            allow_actions: DEFAULT_ACTIONS.iter().map(|action| action.name().to_owned()).collect(),
            allow_timeout_ms: 300,
            allow_ttl_ms: 10_000,
            before_url: String::new(),
            before_fail: String::new(),
            before_rooms: Vec::new(),
            before_timeout_ms: 300,
            secret_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            insecure: false,
            in_flight_max: 64,
            waiting_max: 1_024,
        }
    }
}

impl HooksConfig {
    /// Returns whether a hook is configured.
    pub fn is_on(&self) -> bool {
        [&self.login_url, &self.allow_url, &self.before_url].iter().any(|url| !url.is_empty())
    }

    /// Returns the questions for the hook `allow`.
    pub fn actions(&self) -> Vec<AllowAction> {
        let is_named = |action: &AllowAction| self.allow_actions.iter().any(|name| name == action.name());
        AllowAction::ALL.into_iter().filter(is_named).collect()
    }

    /// Returns whether the hook `allow` allows without a valid answer.
    pub fn fails_open(&self) -> bool {
        self.allow_fail == FAIL_OPEN
    }

    /// Returns whether the hook `message.before` accepts without a valid answer.
    pub fn before_fails_open(&self) -> bool {
        self.before_fail == FAIL_OPEN
    }

    /// Returns whether the hook `allow` is asked about messages.
    fn asks_allow(&self) -> bool {
        let is_asked = |action: &AllowAction| matches!(action, AllowAction::Write | AllowAction::Start);
        !self.allow_url.is_empty() && self.actions().iter().any(is_asked)
    }

    /// Returns the longest time of all questions about one message.
    pub(crate) fn asked_ms_max(&self) -> u64 {
        let allow_ms = if self.asks_allow() { self.allow_timeout_ms } else { 0 };
        let before_ms = if self.before_url.is_empty() { 0 } else { self.before_timeout_ms };
        allow_ms.saturating_add(before_ms)
    }

    /// Returns the time for which an answer holds that names none.
    pub fn allow_ttl(&self) -> Duration {
        Duration::from_millis(self.allow_ttl_ms)
    }

    /// Checks that the questions about a message are answered before its sender gets UNKNOWN, after `reply_ms`.
    pub(super) fn check_times(&self, reply_ms: u64, need: &mut impl FnMut(bool, &str)) {
        let key = if self.before_url.is_empty() {
            "hooks.allow_timeout_ms: "
        } else if self.asks_allow() {
            "hooks.before_timeout_ms: with hooks.allow_timeout_ms "
        } else {
            "hooks.before_timeout_ms: "
        };
        need(
            self.asked_ms_max() < reply_ms,
            &format!(
                "{key}less than timing.reply_ms, after which the sender gets UNKNOWN; lower the time of the question, or raise \
                 timing.reply_ms"
            ),
        );
    }

    pub(super) fn check(&self, handshake_ms: u64, origins: &[String], need: &mut impl FnMut(bool, &str)) {
        self.check_cookies(origins, need);
        let urls = [
            ("hooks.login_url", &self.login_url),
            ("hooks.allow_url", &self.allow_url),
            ("hooks.before_url", &self.before_url),
        ];
        for (key, url) in urls {
            if let Some(problem) = self.url_problem(url) {
                need(false, &format!("{key}: {problem}"));
            }
        }
        need(
            !self.is_on() || !self.secret_file.as_os_str().is_empty(),
            "hooks.secret_file: needed with a URL; create it with `echo whsec_$(openssl rand -base64 32)`, mode 600",
        );
        need(
            self.allow_url.is_empty() || [FAIL_OPEN, FAIL_CLOSED].contains(&self.allow_fail.as_str()),
            "hooks.allow_fail: `open` or `closed`; there is no default, because either may be wrong",
        );
        let is_action = |name: &String| AllowAction::ALL.iter().any(|action| action.name() == name);
        need(
            self.allow_actions.iter().all(is_action)
                && (self.allow_url.is_empty() || !self.allow_actions.is_empty()),
            "hooks.allow_actions: one or more of `join`, `write`, `start`, `signal` and `recall`",
        );
        need(
            self.login_url.is_empty() || (10..handshake_ms).contains(&self.login_timeout_ms),
            "hooks.login_timeout_ms: at least 10, and less than timing.handshake_ms",
        );
        need((10..=3_000).contains(&self.allow_timeout_ms), "hooks.allow_timeout_ms: between 10 ms and 3 s");
        self.check_before(need);
        need(self.allow_ttl_ms <= 60_000, "hooks.allow_ttl_ms: at most one minute");
        need((1..=1_024).contains(&self.in_flight_max), "hooks.in_flight_max: between 1 and 1024");
        need(self.waiting_max <= 65_536, "hooks.waiting_max: at most 65536");
    }

    fn check_before(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            self.before_url.is_empty() || [FAIL_OPEN, FAIL_CLOSED].contains(&self.before_fail.as_str()),
            "hooks.before_fail: `open` or `closed`; there is no default, because either may be wrong",
        );
        need(
            (10..=3_000).contains(&self.before_timeout_ms),
            "hooks.before_timeout_ms: between 10 ms and 3 s",
        );
        let is_named = |name: &String| {
            let id = name.strip_prefix("r:").map(|id| id.strip_suffix('*').unwrap_or(id));
            id.is_some_and(|id| check_id(id).is_ok() || name == "r:*")
        };
        need(
            self.before_rooms.len() <= ROOMS_MAX && self.before_rooms.iter().all(is_named),
            "hooks.before_rooms: at most 64 keys of live rooms such as `r:hall`, or beginnings such as `r:news.*`",
        );
    }

    fn check_cookies(&self, origins: &[String], need: &mut impl FnMut(bool, &str)) {
        let is_name = |name: &String| {
            (1..=COOKIE_NAME_BYTES_MAX).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
        };
        need(
            self.login_cookies.len() <= COOKIES_MAX && self.login_cookies.iter().all(is_name),
            "hooks.login_cookies: at most 8 names of cookies, each of at most 64 bytes",
        );
        if self.login_cookies.is_empty() {
            return;
        }
        need(
            !self.login_url.is_empty(),
            "hooks.login_cookies: needs hooks.login_url, which gets the cookies",
        );
        // Pages in sandboxed frames of any site have the origin `null`.
        let is_page = |origin: &String| origin != "*" && !origin.eq_ignore_ascii_case("null");
        need(
            !origins.is_empty() && origins.iter().all(is_page),
            "hooks.login_cookies: needs listen.origins with the origins of your pages, and neither \"*\" nor \"null\": \
             browsers send cookies along with the connections of any page, so every site could log in as its visitor",
        );
    }

    fn url_problem(&self, url: &str) -> Option<&'static str> {
        if url.is_empty() {
            return None;
        }
        let uri: Option<Uri> = url.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let scheme = uri.as_ref().and_then(Uri::scheme_str).unwrap_or_default();
        if host.is_empty() || !["https", "http"].contains(&scheme) || url.contains('@') {
            return Some("a URL that begins with https:// or http://, without a password");
        }
        let is_loopback = ["localhost", "127.0.0.1", "[::1]"].contains(&host);
        (scheme == "http" && !is_loopback && !self.insecure).then_some(
            "http to another machine, so who can change that traffic can log in as any user; use https, or set \
             hooks.insecure=true to accept that",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::problem, HooksConfig};

    #[test]
    fn login_cookies_need_the_origins_of_pages() {
        let url = ["hooks.secret_file=s", "hooks.login_url=https://app.example/login"];
        let with = |sets: &[&str]| problem(&[&url[..], sets].concat());
        let (cookies, page) = ("hooks.login_cookies=[sid]", "listen.origins=[https://chat.example]");
        assert_eq!(with(&[cookies, page]), "");
        for origins in ["[]", "[*]", "[https://chat.example, *]", "[null]", "[NULL]"] {
            let found = with(&[cookies, &format!("listen.origins={origins}")]);
            assert!(found.contains("hooks.login_cookies: needs listen.origins"), "{origins}: {found}");
        }
        assert!(problem(&[cookies, page]).contains("needs hooks.login_url"));
        for names in ["[a b]", "[a=b]", "[a;b]", "[a,b,c,d,e,f,g,h,i]"] {
            let found = with(&[&format!("hooks.login_cookies={names}"), page]);
            assert!(found.contains("at most 8 names"), "{names}: {found}");
        }
    }

    #[test]
    fn times_of_any_size_have_a_sum() {
        let url = || "https://app.example/".to_owned();
        let hooks = HooksConfig {
            allow_url: url(),
            before_url: url(),
            allow_timeout_ms: u64::MAX,
            before_timeout_ms: 1,
            ..HooksConfig::default()
        };
        assert_eq!(hooks.asked_ms_max(), u64::MAX);
    }

    #[test]
    fn hook_needs_a_secret_and_a_stated_failure() {
        let (secret, url) = ("hooks.secret_file=s", "hooks.allow_url=https://app.example/allow");
        assert_eq!(problem(&[secret, url, "hooks.allow_fail=closed"]), "");
        assert!(problem(&[secret, url]).contains("hooks.allow_fail: `open` or `closed`"));
        assert!(problem(&[url, "hooks.allow_fail=open"]).contains("hooks.secret_file: needed"));
        let before = "hooks.before_url=https://app.example/before";
        assert!(problem(&[secret, before]).contains("hooks.before_fail: `open` or `closed`"));
        let rooms = "hooks.before_rooms=[r:hall, r:news.*, r:*]";
        assert_eq!(problem(&[secret, before, "hooks.before_fail=open", rooms]), "");
        for (wrong, why) in [
            ("hooks.before_url=http://10.0.0.1/", "hooks.insecure=true"),
            ("hooks.before_timeout_ms=3001", "hooks.before_timeout_ms"),
            ("hooks.before_rooms=[hall]", "hooks.before_rooms"),
            ("hooks.before_rooms=[g:team]", "hooks.before_rooms"),
            ("hooks.before_rooms=[\"r:a b\"]", "hooks.before_rooms"),
            ("hooks.before_rooms=[\"r:*a\"]", "hooks.before_rooms"),
            ("hooks.login_url=http://10.0.0.1/", "hooks.insecure=true"),
            ("hooks.login_url=https://a:b@app.example/", "without a password"),
            ("hooks.login_url=ftp://app.example/", "hooks.login_url: a URL"),
            ("hooks.allow_actions=[read]", "hooks.allow_actions"),
            ("hooks.allow_timeout_ms=3001", "hooks.allow_timeout_ms"),
        ] {
            assert!(problem(&[secret, wrong]).contains(why), "{wrong}: {}", problem(&[secret, wrong]));
        }
        let settings = [secret, before, "hooks.before_fail=open", "hooks.before_timeout_ms=2000"];
        let with = |more: &[&str]| problem(&[&settings[..], more].concat());
        let allow = [url, "hooks.allow_fail=open", "hooks.allow_timeout_ms=600"];
        assert_eq!(with(&["timing.reply_ms=2001"]), "");
        assert_eq!(
            problem(&[secret, "hooks.before_timeout_ms=3000", "timing.reply_ms=2000"]),
            "",
            "it is off"
        );
        assert!(with(&["timing.reply_ms=2000"]).contains("raise timing.reply_ms"));
        assert!(with(&[&allow[..], &["timing.reply_ms=2600"]].concat()).contains("raise timing.reply_ms"));
        assert_eq!(with(&[&allow[..], &["timing.reply_ms=2601"]].concat()), "");
        let allow_alone = |more: &[&str]| problem(&[&[secret][..], &allow, more].concat());
        assert_eq!(allow_alone(&["timing.reply_ms=601"]), "");
        let found = allow_alone(&["timing.reply_ms=600"]);
        assert!(found.contains("hooks.allow_timeout_ms: less than timing.reply_ms"), "{found}");
        let joins = ["timing.reply_ms=600", "hooks.allow_actions=[join, recall]"];
        assert_eq!(allow_alone(&joins), "", "no message waits for it");
        let slow = ["hooks.login_timeout_ms=5000", "hooks.login_url=http://127.0.0.1/"];
        assert!(problem(&[secret, slow[0], slow[1]]).contains("less than timing.handshake_ms"));
    }
}
