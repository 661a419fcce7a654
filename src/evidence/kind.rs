//! Kinds of evidence of abuse, with their weights in scores.

use metrics::Counter;
use tidegate_protocol::Code;

use crate::{auth::TokenFault, metrics::Metrics};

macro_rules! evidence_kinds {
    ($($variant:ident $field:ident $name:literal $weight:literal $what:literal)*) => {
        /// Kind of a security event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EvidenceKind {
            $(#[doc = $what] $variant,)*
        }

        impl EvidenceKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name in events, in the file and in the admin API.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns what one event adds to a score, of which 100 is a ban.
            pub const fn weight(self) -> u32 {
                match self { $(Self::$variant => $weight,)* }
            }

            /// Returns what has happened, in words.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$variant => $what,)* }
            }

            /// Returns the counter of the kind.
            pub fn counter(self, metrics: &Metrics) -> &Counter {
                match self { $(Self::$variant => &metrics.$field,)* }
            }
        }
    };
}

evidence_kinds! {
    TokenForged evidence_token_forged "token_forged" 10 "Token signed with another key."
    TokenAlgorithm evidence_token_algorithm "token_algorithm" 10 "Token that is not signed, or with another algorithm than the key's."
    TokenMalformed evidence_token_malformed "token_malformed" 10 "Token that is no JWT, too large, or with claims that are not well formed."
    TokenUnknownKey evidence_token_unknown_key "token_unknown_key" 2 "Token of a key that the node does not know; a key that was just replaced looks the same."
    TokenDenied evidence_token_denied "token_denied" 2 "Token for another audience, of another issuer or out of its time, or credential that the hook `login` refused."
    TokenExpired evidence_token_expired "token_expired" 1 "Token that has expired or is revoked."
    FrameMalformed evidence_frame_malformed "frame_malformed" 20 "Frame that can't be decoded, or first bytes of no known framing."
    UpgradeRefused evidence_upgrade_refused "upgrade_refused" 10 "First bytes of an HTTP request that are no HTTP."
    HttpRefused evidence_http_refused "http_refused" 0 "Request of HTTP or TLS that the client port does not serve, as any web page can make its visitors send."
    HelloTimeout evidence_hello_timeout "hello_timeout" 3 "No complete Hello in time."
    LimitHit evidence_limit_hit "limit_hit" 0 "Request over a limit."
    Impatience evidence_impatience "impatience" 2 "Message sent again before the wait that the node named was over."
    Probe evidence_probe "probe" 5 "Request for a group, a conversation or a room that does not exist, or of which the user is no member."
    OrderBlocked evidence_order_blocked "order_blocked" 10 "Chain of messages whose next one did not come in time."
    ConnectFlood evidence_connect_flood "connect_flood" 1 "Connection over the limits of its address."
    KeyRefused evidence_key_refused "key_refused" 10 "Key that the admin port refused."
    GatewayDenied evidence_gateway_denied "gateway_denied" 5 "Request that the gateway answered with 401 or 403."
    GatewayNotFound evidence_gateway_not_found "gateway_not_found" 2 "Request that the gateway answered with 404."
    GatewayCaptcha evidence_gateway_captcha "gateway_captcha" 2 "Request for a captcha, by `evidence.captcha_paths`."
    GatewayLogin evidence_gateway_login "gateway_login" 2 "Request to a login at the gateway, by `evidence.login_paths`."
    ScopeMissing evidence_scope_missing "scope_missing" 5 "Request that the caller's key of the admin port does not allow."
}

impl EvidenceKind {
    /// Returns the kind of a refused token; `None` if the refusal says nothing about the client.
    pub const fn of_token(fault: TokenFault) -> Option<Self> {
        match fault {
            TokenFault::Signature => Some(Self::TokenForged),
            TokenFault::Unsigned | TokenFault::Algorithm => Some(Self::TokenAlgorithm),
            TokenFault::TooLarge
            | TokenFault::Malformed
            | TokenFault::Critical
            | TokenFault::BadId
            | TokenFault::BadClaim => Some(Self::TokenMalformed),
            TokenFault::UnknownKey => Some(Self::TokenUnknownKey),
            TokenFault::Expired | TokenFault::Revoked => Some(Self::TokenExpired),
            TokenFault::Early
            | TokenFault::TooLong
            | TokenFault::Issuer
            | TokenFault::Audience
            | TokenFault::HookDenied => Some(Self::TokenDenied),
            TokenFault::NoKeys
            | TokenFault::Busy
            | TokenFault::HookUnavailable
            | TokenFault::AddressLimited => None,
        }
    }

    /// Returns the kind of a connection that the node closes with a code; `None` if the code is no evidence.
    pub const fn of_close(code: Code) -> Option<Self> {
        match code {
            Code::Malformed | Code::FrameTooLarge | Code::UnknownFraming | Code::TooManyFrames => {
                Some(Self::FrameMalformed)
            }
            Code::HandshakeTimeout => Some(Self::HelloTimeout),
            Code::RateLimited => Some(Self::LimitHit),
            _ => None,
        }
    }

    /// Returns the kind of a refused upgrade; `None` if the code is no evidence, such as that of a ban, which would prolong
    /// itself.
    pub const fn of_upgrade(code: Code, is_http: bool) -> Option<Self> {
        match code {
            Code::Banned => None,
            Code::TooManyFromAddress => Some(Self::ConnectFlood),
            _ if is_http => Some(Self::HttpRefused),
            _ => Some(Self::UpgradeRefused),
        }
    }

    /// Returns the kind of a request that is refused with a code; `None` if the code is no evidence.
    pub fn of_refusal(code: u32) -> Option<Self> {
        match u16::try_from(code).ok().and_then(Code::from_number)? {
            Code::NotAMember | Code::NotFound => Some(Self::Probe),
            Code::RateLimited => Some(Self::LimitHit),
            _ => None,
        }
    }

    /// Returns the kind of a connection that is refused at accept; `None` if the code is no evidence.
    pub const fn of_accept(code: Code) -> Option<Self> {
        match code {
            Code::TooManyFromAddress | Code::RateLimited => Some(Self::ConnectFlood),
            _ => None,
        }
    }
}
