//! Hook `login`: turns a credential that is no token of the node into a user.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{cache::AnswerMap, client::HookClient, failure::HookFailure, reason::AppReason};
use crate::{
    auth::{Claims, TokenFault, TokenIdentity, identity_of},
    log_limit::log_limited,
    metrics::Metrics,
    net::upgrade::Cookies,
};

/// Time for which a refusal holds.
const REFUSAL_TTL: Duration = Duration::from_secs(5);

/// Longest time for which an identity holds; the hook is asked again then.
pub const IDENTITY_TTL_MAX: Duration = Duration::from_secs(86_400);

/// Memory of an identity in the cache, in addition to its grants.
const IDENTITY_BYTES: usize = 512;

/// Memory of a refusal in the cache.
const REFUSAL_BYTES: usize = size_of::<LoginKey>();

/// Claims of an answer that have fields of their own, or are of tokens only.
const OWN_CLAIMS: [&str; 6] = ["sub", "exp", "dev", "nbf", "iss", "aud"];

/// Client that presents a credential.
#[derive(Clone, Debug)]
pub struct LoginOrigin {
    /// Device that the client names; `None` in a request for an assignment.
    pub device: Option<String>,
    /// Address of the client.
    pub address: IpAddr,
    /// Web origin of the page, if there is one.
    pub origin: Option<String>,
    /// Cookies of the page for the login.
    pub cookies: Cookies,
    /// Whether too many tokens of the address were refused, so that the hook is not asked.
    pub is_limited: bool,
}

/// Refusal of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginFault {
    /// Why it is refused.
    pub fault: TokenFault,
    /// Reason that the application gives.
    pub reason: Option<Arc<AppReason>>,
}

impl From<TokenFault> for LoginFault {
    fn from(fault: TokenFault) -> Self {
        Self { fault, reason: None }
    }
}

/// Time of a login, and the rule for the end of its identity.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoginTime {
    /// Wall-clock time, in ms since 1970.
    pub(super) wall_ms: u64,
    /// Longest validity from the time of issue; zero for no limit.
    pub(super) max_lifetime: Duration,
}

/// Hook `login`.
pub(crate) struct LoginHook {
    client: HookClient,
    identities: AnswerMap<LoginKey, TokenIdentity>,
    /// Refused credentials, apart from the identities so that they evict none.
    refusals: AnswerMap<LoginKey, Option<Arc<AppReason>>>,
    metrics: Metrics,
}

/// Key of an answer: the hash of the credential, the device, the origin and the cookies.
type LoginKey = [u8; 32];

/// Identity that an answer names.
#[derive(Debug, PartialEq, Eq)]
struct NamedIdentity {
    identity: TokenIdentity,
    /// End, in ms since 1970.
    until_ms: u64,
    /// Whether the answer names the time of issue.
    is_dated: bool,
}

/// Valid answer.
#[derive(Debug, PartialEq, Eq)]
enum LoginAnswer {
    Named(NamedIdentity),
    Denied(Option<Arc<AppReason>>),
}

#[derive(Serialize)]
struct Question<'a> {
    credential: &'a str,
    device: Option<&'a str>,
    address: IpAddr,
    origin: Option<&'a str>,
    #[serde(skip_serializing_if = "Cookies::is_empty")]
    cookies: &'a Cookies,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    user: Option<String>,
    device: Option<String>,
    expires_at: Option<u64>,
    #[serde(default)]
    claims: Map<String, Value>,
    deny: Option<Value>,
}

impl LoginHook {
    pub(super) fn new(client: HookClient, metrics: Metrics) -> Self {
        Self { client, identities: AnswerMap::new(), refusals: AnswerMap::new(), metrics }
    }

    /// Returns the identity of a credential. Answers to requests for an assignment are not cached.
    pub(super) async fn identify(
        &self,
        credential: &str,
        from: &LoginOrigin,
        at: LoginTime,
    ) -> Result<TokenIdentity, LoginFault> {
        let key = cache_key(credential, from);
        if let Some(known) = key.and_then(|key| self.known(&key, Instant::now())) {
            if known.is_err() {
                self.metrics.hook_login_cached_denials.increment(1);
            }
            return known;
        }
        if from.is_limited {
            return Err(TokenFault::AddressLimited.into());
        }
        self.metrics.hook_login_calls.increment(1);
        let question = Question {
            credential,
            device: from.device.as_deref(),
            address: from.address,
            origin: from.origin.as_deref(),
            cookies: &from.cookies,
        };
        let body = serde_json::to_vec(&question).unwrap_or_default();
        let began = Instant::now();
        let answer = self.client.call(body, |answer| parse(answer, at)).await;
        self.metrics.hook_login_times.record(began.elapsed());
        match answer {
            Ok(LoginAnswer::Named(named)) => Ok(match key {
                Some(key) => self.remember(key, named, at),
                None => named.identity,
            }),
            Ok(LoginAnswer::Denied(reason)) => {
                self.metrics.hook_login_denials.increment(1);
                Err(self.refuse(key, reason))
            }
            Err(failure) => {
                self.metrics.hook_login_failures.increment(1);
                report(&failure);
                // Where the server is there and has time, the credential is the cause.
                let is_refusal = failure.is_answered() && !failure.is_busy();
                Err(if is_refusal { self.refuse(key, None) } else { TokenFault::HookUnavailable.into() })
            }
        }
    }

    fn known(&self, key: &LoginKey, now: Instant) -> Option<Result<TokenIdentity, LoginFault>> {
        let refused = || {
            let reason = self.refusals.get(key, now)?;
            Some(Err(LoginFault { fault: TokenFault::HookDenied, reason }))
        };
        self.identities.get(key, now).map(Ok).or_else(refused)
    }

    /// Caches an identity, and returns it. Without a time of issue in the answer, that of the first answer in the cache
    /// applies.
    fn remember(&self, key: LoginKey, named: NamedIdentity, at: LoginTime) -> TokenIdentity {
        let NamedIdentity { mut identity, until_ms, is_dated } = named;
        let now = Instant::now();
        if !is_dated && let Some(first) = self.identities.get(&key, now) {
            identity.term.issued_ms = first.term.issued_ms;
        }
        let ttl = Duration::from_millis(until_ms.saturating_sub(at.wall_ms)).min(IDENTITY_TTL_MAX);
        let bytes = IDENTITY_BYTES + identity.grants.as_ref().map_or(0, |grants| grants.weight());
        self.identities.insert(key, identity.clone(), now + ttl, bytes);
        identity
    }

    fn refuse(&self, key: Option<LoginKey>, reason: Option<Arc<AppReason>>) -> LoginFault {
        if let Some(key) = key {
            let bytes = REFUSAL_BYTES + reason.as_ref().map_or(0, |reason| reason.bytes());
            self.refusals.insert(key, reason.clone(), Instant::now() + REFUSAL_TTL, bytes);
        }
        LoginFault { fault: TokenFault::HookDenied, reason }
    }
}

/// Returns the key of the answer; `None` for a request for an assignment.
fn cache_key(credential: &str, from: &LoginOrigin) -> Option<LoginKey> {
    let device = from.device.as_deref()?;
    let mut context = Context::new(&SHA256);
    let cookies = from.cookies.iter().flat_map(|(name, value)| [Some(name), Some(value)]);
    // With the lengths, so that no two differ only in where one part ends.
    for part in [Some(credential), Some(device), from.origin.as_deref()].into_iter().chain(cookies) {
        let bytes = part.map_or(u64::MAX, |part| part.len() as u64);
        context.update(&bytes.to_le_bytes());
        context.update(part.unwrap_or_default().as_bytes());
    }
    let mut key = [0; 32];
    key.copy_from_slice(context.finish().as_ref());
    Some(key)
}

fn report(failure: &HookFailure) {
    let why = failure.text();
    log_limited!(warn, why, "hook `login` gave no valid answer; login refused");
}

/// Returns what the answer says; `None` if it is not valid.
fn parse(answer: &[u8], at: LoginTime) -> Option<LoginAnswer> {
    let Answer { user, device, expires_at, mut claims, deny } = serde_json::from_slice(answer).ok()?;
    if let Some(deny) = deny.filter(|deny| *deny != Value::Bool(false)) {
        let reason = AppReason::of(deny.get("code"), deny.get("message"));
        return user.is_none().then_some(LoginAnswer::Denied(reason));
    }
    let (user, mut until_ms) = (user?, expires_at?);
    for name in OWN_CLAIMS {
        claims.remove(name);
    }
    claims.insert("sub".into(), user.into());
    claims.insert("exp".into(), (until_ms / 1_000).into());
    if let Some(device) = device {
        claims.insert("dev".into(), device.into());
    }
    let mut claims: Claims = serde_json::from_value(Value::Object(claims)).ok()?;
    let is_dated = claims.iat.is_some();
    let now_s = (at.wall_ms / 1_000) as f64;
    let issued_s = *claims.iat.get_or_insert(now_s);
    if !at.max_lifetime.is_zero() {
        // A time of issue in the future would hide a long validity.
        let end_s = issued_s.min(now_s) + at.max_lifetime.as_secs_f64();
        until_ms = until_ms.min((end_s * 1_000.0) as u64);
        claims.exp = until_ms / 1_000;
    }
    // An identity that has ended already is a mistake of the server, too.
    let identity = identity_of(&claims, at.wall_ms).ok()?;
    Some(LoginAnswer::Named(NamedIdentity { identity, until_ms, is_dated }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::{
        breaker::GuardedService,
        hooks::{client::ClientSettings, signing::Signer},
        metrics,
    };

    fn parsed_within(answer: &Value, max_lifetime_s: u64) -> Option<LoginAnswer> {
        let max_lifetime = Duration::from_secs(max_lifetime_s);
        parse(answer.to_string().as_bytes(), LoginTime { wall_ms: 1_000_000, max_lifetime })
    }

    fn parsed(answer: &Value) -> Option<LoginAnswer> {
        parsed_within(answer, 0)
    }

    fn identity(answer: LoginAnswer) -> NamedIdentity {
        match answer {
            LoginAnswer::Named(named) => named,
            LoginAnswer::Denied(_) => panic!("{answer:?}"),
        }
    }

    #[test]
    fn answer_names_a_user_or_a_refusal() {
        let full = json!({"user": "ann", "device": "tv", "expiresAt": 2_000_500, "claims": {"prio": 3, "rooms": ["hall"],
            "sub": "root", "dev": "x", "own": {"any": 1}}, "further": 1});
        let NamedIdentity { identity, until_ms, .. } = identity(parsed(&full).unwrap());
        assert_eq!((identity.user.as_str(), until_ms), ("ann", 2_000_500));
        assert_eq!(identity.device.unwrap().as_str(), "tv");
        assert_eq!(identity.grants.unwrap().priority, Some(3));
        assert_eq!(parsed(&json!({"deny": true})), Some(LoginAnswer::Denied(None)));
        let reason = AppReason { message: "no".into(), code: "5001".into() };
        let denied = LoginAnswer::Denied(Some(Arc::new(reason)));
        assert_eq!(parsed(&json!({"deny": {"message": "no", "code": 5001}})), Some(denied));
    }

    #[test]
    fn longest_lifetime_caps_the_end_of_an_identity() {
        let named = |claims: Value, max_lifetime_s| {
            let answer = json!({"user": "ann", "expiresAt": 90_000_000, "claims": claims});
            let named = identity(parsed_within(&answer, max_lifetime_s)?);
            let term = named.identity.term;
            Some((named.until_ms, term.expires_ms, term.issued_ms, named.is_dated))
        };
        assert_eq!(named(json!({}), 0), Some((90_000_000, 90_001_000, Some(1_000_000), false)));
        assert_eq!(named(json!({}), 600), Some((1_600_000, 1_601_000, Some(1_000_000), false)));
        assert_eq!(named(json!({"iat": 900}), 600), Some((1_500_000, 1_501_000, Some(900_000), true)));
        let later = named(json!({"iat": 5_000}), 600);
        assert_eq!(later, Some((1_600_000, 1_601_000, Some(5_000_000), true)), "a later issue hides nothing");
        assert_eq!(named(json!({"iat": 300}), 600), None, "it has ended");
        assert_eq!(named(json!({}), 1_000_000), Some((90_000_000, 90_001_000, Some(1_000_000), false)));
    }

    #[test]
    fn cached_answer_is_of_a_credential_a_device_and_an_origin() {
        let from = |device: Option<&str>, origin: Option<&str>| LoginOrigin {
            device: device.map(str::to_owned),
            address: IpAddr::from([192, 0, 2, 1]),
            origin: origin.map(str::to_owned),
            cookies: Cookies::default(),
            is_limited: false,
        };
        let one = cache_key("ticket", &from(Some("phone"), None));
        assert!(one.is_some());
        let elsewhere = LoginOrigin { address: IpAddr::from([192, 0, 2, 2]), ..from(Some("phone"), None) };
        assert_eq!(cache_key("ticket", &elsewhere), one);
        for (credential, device, origin) in [
            ("ticket", "desk", None),
            ("ticket", "phone", Some("")),
            ("ticket", "phone", Some("https://app.example")),
            ("ticke", "tphone", None),
            ("ticketp", "hone", None),
        ] {
            assert_ne!(cache_key(credential, &from(Some(device), origin)), one, "{credential} {device}");
        }
        assert_eq!(cache_key("ticket", &from(None, None)), None, "a request for an assignment");
        let with = |cookies: &[(&str, &str)]| {
            let cookies = Cookies::of(cookies);
            cache_key("ticket", &LoginOrigin { cookies, ..from(Some("phone"), None) })
        };
        let sid = with(&[("sid", "x")]);
        for cookies in [&[][..], &[("sid", "y")], &[("si", "dx")], &[("a", "x")], &[("sid", "x"), ("a", "x")]]
        {
            assert_ne!(with(cookies), sid, "{cookies:?}");
        }
    }

    fn hook() -> LoginHook {
        let signer = Arc::new(Signer::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
        let timeout = Duration::from_secs(1);
        let settings = ClientSettings { timeout, in_flight_max: 1, waiting_max: 0, answer_bytes_max: 1_000 };
        let client = HookClient::new(
            "http://127.0.0.1:1/",
            Path::new(""),
            signer,
            settings,
            GuardedService::HookLogin,
        )
        .unwrap();
        LoginHook::new(client, metrics::install().0)
    }

    #[test]
    fn identity_keeps_its_first_time_of_issue_and_refusals_evict_none() {
        let (hook, key) = (hook(), [1; 32]);
        let at = |wall_ms| LoginTime { wall_ms, max_lifetime: Duration::ZERO };
        let named = |claims: Value, wall_ms| {
            let answer = json!({"user": "ann", "expiresAt": 90_000_000, "claims": claims}).to_string();
            identity(parse(answer.as_bytes(), at(wall_ms)).unwrap())
        };
        let issued = |claims: Value, wall_ms| {
            hook.remember(key, named(claims, wall_ms), at(wall_ms)).term.issued_ms.unwrap()
        };
        assert_eq!(issued(json!({}), 1_000_000), 1_000_000);
        assert_eq!(issued(json!({}), 2_000_000), 1_000_000);
        assert_eq!(issued(json!({"iat": 1_500}), 3_000_000), 1_500_000);
        for n in 0..100_000_u32 {
            let mut bogus = [0; 32];
            bogus[..4].copy_from_slice(&n.to_le_bytes());
            hook.refuse(Some(bogus), None);
        }
        assert!(matches!(hook.known(&key, Instant::now()), Some(Ok(_))));
    }

    #[tokio::test]
    async fn hook_is_not_asked_for_a_limited_address_unless_the_answer_is_cached() {
        let (hook, at) = (hook(), LoginTime { wall_ms: 1_000_000, max_lifetime: Duration::ZERO });
        let from = LoginOrigin {
            device: Some("phone".to_owned()),
            address: IpAddr::from([192, 0, 2, 1]),
            origin: None,
            cookies: Cookies::default(),
            is_limited: true,
        };
        let refused = Box::pin(hook.identify("ticket", &from, at)).await;
        assert_eq!(refused, Err(TokenFault::AddressLimited.into()));
        let named = identity(parsed(&json!({"user": "ann", "expiresAt": 90_000_000})).unwrap());
        hook.remember(cache_key("ticket", &from).unwrap(), named, at);
        assert!(Box::pin(hook.identify("ticket", &from, at)).await.is_ok());
    }

    #[test]
    fn other_answers_are_failures() {
        for wrong in [
            json!({}),
            json!([]),
            json!({"user": "ann"}),
            json!({"user": "ann", "expiresAt": 999_000}),
            json!({"user": "not an id", "expiresAt": 2_000_000}),
            json!({"user": "ann", "expiresAt": 2_000_000, "claims": {"prio": "high"}}),
            json!({"user": "ann", "expiresAt": 2_000_000, "deny": true}),
            json!({"deny": false}),
        ] {
            assert_eq!(parsed(&wrong), None, "{wrong}");
        }
    }
}
