//! Hooks: questions to the application's own server, by signed HTTP requests.
//!
//! `login` turns a credential that is no token of the node into a user; without an answer the login is refused. `allow`
//! decides whether a user may join a room, write or signal to a conversation, start one, or recall a message; its answers are
//! cached. `message.before` decides about what is written. Requests are bounded in number, time and size, and a breaker stops
//! them while they fail.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::id::ConversationId;

mod allow;
mod before;
mod cache;
mod client;
mod failure;
mod login;
mod reason;
mod share;
mod signing;
mod started;
mod transport;
mod webhook;

pub(crate) use self::signing::is_secret;
use self::{
    allow::AllowSettings,
    before::BeforeSettings,
    client::{ClientSettings, HookClient},
    failure::ANSWER_BYTES_MAX,
    login::{LoginHook, LoginTime},
    signing::Signer,
};
pub use self::{
    allow::{AllowHook, HookVerdict},
    before::{AppDenial, BeforeHook, BeforeQuestion, BeforeVerdict},
    login::{IDENTITY_TTL_MAX, LoginFault, LoginOrigin},
    reason::AppReason,
    started::StartedRead,
    webhook::{
        EncodedEvent, InvalidTarget, SenderSettings, WebhookBody, WebhookReply, WebhookRequest,
        WebhookSender, WebhookTarget,
    },
};
use crate::{
    auth::{TokenIdentity, Verifier},
    breaker::GuardedService,
    config::HooksConfig,
    live::Live,
    metrics::Metrics,
    private,
};

/// Hooks of one configuration.
#[derive(Default)]
pub struct HookSet {
    login: Option<LoginHook>,
    allow: Option<Arc<AllowHook>>,
    before: Option<Arc<BeforeHook>>,
}

impl HookSet {
    /// Builds the configured hooks, without a call, for contents of at most so many bytes.
    ///
    /// # Errors
    /// A URL, or the file of the secret or of the authorities, can't be used.
    pub fn new(config: &HooksConfig, content_bytes_max: usize, metrics: &Metrics) -> io::Result<Self> {
        if !config.is_on() {
            return Ok(Self::default());
        }
        let signer = Signer::read(&config.secret_file).map_err(|error| {
            io::Error::new(error.kind(), private::unusable("hooks.secret_file", &config.secret_file, error))
        });
        let signer = Arc::new(signer?);
        let client = |url: &str, timeout_ms: u64, answer_bytes_max, service| {
            let settings = ClientSettings {
                timeout: Duration::from_millis(timeout_ms),
                in_flight_max: config.in_flight_max,
                waiting_max: config.waiting_max,
                answer_bytes_max,
            };
            let client = HookClient::new(url, &config.ca_file, Arc::clone(&signer), settings, service);
            client.map_err(|error| io::Error::new(error.kind(), format!("hooks.ca_file: {error}")))
        };
        let login = match config.login_url.as_str() {
            "" => None,
            url => Some(LoginHook::new(
                client(url, config.login_timeout_ms, ANSWER_BYTES_MAX, GuardedService::HookLogin)?,
                metrics.clone(),
            )),
        };
        let allow = match config.allow_url.as_str() {
            "" => None,
            url => {
                let settings = AllowSettings {
                    actions: config.actions(),
                    ttl: config.allow_ttl(),
                    fails_open: config.fails_open(),
                };
                let service = GuardedService::HookAllow;
                let client = client(url, config.allow_timeout_ms, ANSWER_BYTES_MAX, service)?;
                Some(Arc::new(AllowHook::new(client, settings, metrics.clone())))
            }
        };
        let before = match config.before_url.as_str() {
            "" => None,
            url => {
                let settings = before_settings(config, content_bytes_max);
                let bytes_max = before::answer_bytes_max(content_bytes_max);
                let client = client(url, config.before_timeout_ms, bytes_max, GuardedService::HookBefore)?;
                Some(Arc::new(BeforeHook::new(client, settings, metrics.clone())))
            }
        };
        Ok(Self { login, allow, before })
    }
}

fn before_settings(config: &HooksConfig, content_bytes_max: usize) -> BeforeSettings {
    BeforeSettings {
        timeout: Duration::from_millis(config.before_timeout_ms),
        fails_open: config.before_fails_open(),
        rooms: config.before_rooms.clone(),
        in_flight_max: config.in_flight_max,
        waiting_max: config.waiting_max,
        content_bytes_max,
    }
}

/// Checks the file of the secret that signs requests.
///
/// # Errors
/// The file can't be used, for the reason given.
pub(crate) fn check_secret(file: &Path) -> io::Result<()> {
    Signer::read(file).map(drop)
}

/// Hooks in force.
#[derive(Default)]
pub struct Hooks {
    set: Live<HookSet>,
    has_login: AtomicBool,
    has_allow: AtomicBool,
    has_before: AtomicBool,
}

impl Hooks {
    /// Replaces the hooks; requests under way end with the former ones.
    pub fn replace(&self, set: HookSet) {
        self.has_login.store(set.login.is_some(), Ordering::Relaxed);
        self.has_allow.store(set.allow.is_some(), Ordering::Relaxed);
        self.has_before.store(set.before.is_some(), Ordering::Relaxed);
        self.set.set(set);
    }

    /// Returns whether there is a hook `login`.
    pub fn has_login(&self) -> bool {
        self.has_login.load(Ordering::Relaxed)
    }

    /// Returns the hook `allow`, if there is one.
    pub fn allow(&self) -> Option<Arc<AllowHook>> {
        if !self.has_allow.load(Ordering::Relaxed) {
            return None;
        }
        self.set.get().allow.clone()
    }

    /// Returns the hook `message.before`, if there is one that is asked about the conversation.
    pub fn before(&self, conversation: &ConversationId) -> Option<Arc<BeforeHook>> {
        if !self.has_before.load(Ordering::Relaxed) {
            return None;
        }
        self.set.get().before.clone().filter(|hook| hook.asks_about(conversation.kind()))
    }

    /// Identifies a client by its token, or else by the hook `login` if the credential is none of the node's tokens.
    ///
    /// # Errors
    /// The credential is refused, for the reason given.
    pub async fn identify(
        self: Arc<Self>,
        verifier: Arc<Verifier>,
        credential: String,
        from: LoginOrigin,
        wall_ms: u64,
    ) -> Result<TokenIdentity, LoginFault> {
        let set = self.set.get();
        let Some(hook) = &set.login else { return Ok(verifier.check(credential, wall_ms).await?) };
        match Arc::clone(&verifier).check(credential.clone(), wall_ms).await {
            Err(fault) if fault.is_of_another_issuer() => {
                let at = LoginTime { wall_ms, max_lifetime: verifier.max_lifetime() };
                Box::pin(hook.identify(&credential, &from, at)).await
            }
            other => Ok(other?),
        }
    }
}
