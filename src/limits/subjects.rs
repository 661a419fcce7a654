//! Subjects of a request, which rules count by.

use std::net::IpAddr;

use prost::Message as _;
use tidegate_protocol::{
    content::{Content, ContentBody},
    id::{ConversationId, check_id},
};

use super::{
    content::NormalForm,
    kinds::{ConnectionKeys, LimitLevel},
};

/// Longest name of a subject that is kept, in characters.
const NAME_CHARS_MAX: usize = 160;

/// Subjects of a request, as far as it has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitSubjects<'a> {
    /// Organisation.
    pub organisation: Option<&'a str>,
    /// Channel.
    pub channel: Option<&'a str>,
    /// User.
    pub user: Option<&'a str>,
    /// Device of the user.
    pub device: Option<&'a str>,
    /// Conversation.
    pub conversation: Option<&'a str>,
    /// Whether the user is not known to be a member of the conversation, and has a window of its own there: nobody else
    /// could use up the window of its members, or learn how much of it they used.
    pub is_stranger: bool,
    /// Address of the client or caller.
    pub address: Option<IpAddr>,
    /// Content of a message.
    pub content: Option<LimitContent<'a>>,
    /// Key of the admin port.
    pub key: Option<&'a str>,
    /// Keys of the same subjects, if a connection keeps them.
    pub connection: Option<&'a ConnectionKeys>,
}

/// Content of a message.
#[derive(Clone, Copy, Debug)]
pub enum LimitContent<'a> {
    /// Content as a client sent it.
    Encoded(&'a [u8]),
    /// Text or data alone.
    Plain(&'a [u8]),
    /// Key of a content, which lists show in its place.
    Key(u64),
}

impl<'a> LimitSubjects<'a> {
    /// Returns the subject of a level with the name; `None` if it is no such name. That of a device is `user:device`, that of
    /// a node is empty.
    pub(super) fn named(level: LimitLevel, name: &'a str) -> Option<Self> {
        let id = |text: &'a str| check_id(text).ok().map(|()| text);
        let (none, some) = (Self::default(), Some(name).filter(|name| !name.is_empty()));
        Some(match level {
            LimitLevel::Node if name.is_empty() => none,
            LimitLevel::Node => return None,
            LimitLevel::Organisation => Self { organisation: Some(some?), ..none },
            LimitLevel::Channel => Self { channel: Some(some?), ..none },
            LimitLevel::User => Self { user: Some(id(name)?), ..none },
            LimitLevel::Device => {
                let (user, device) = name.split_once(':')?;
                Self { user: Some(id(user)?), device: Some(id(device)?), ..none }
            }
            LimitLevel::Conversation => {
                // The members of a direct conversation have one order.
                let is_name = |it: &ConversationId| it.as_str() == name;
                ConversationId::parse(name).ok().filter(is_name)?;
                Self { conversation: Some(name), ..none }
            }
            LimitLevel::Content if name.starts_with('#') => {
                let key = u64::from_str_radix(name.get(1..)?, 16).ok()?;
                Self { content: Some(LimitContent::Key(key)), ..none }
            }
            LimitLevel::Address => Self { address: Some(name.parse().ok()?), ..none },
            LimitLevel::Content => Self { content: Some(LimitContent::Plain(some?.as_bytes())), ..none },
            LimitLevel::Key => Self { key: Some(some?), ..none },
        })
    }

    /// Returns the name of the subject of a level, as [`Self::named`] takes it; a content is named by its key.
    pub(super) fn name(&self, level: LimitLevel, key: u64) -> String {
        let text =
            |name: Option<&str>| name.unwrap_or_default().chars().take(NAME_CHARS_MAX).collect::<String>();
        match level {
            LimitLevel::Node => String::new(),
            LimitLevel::Organisation => text(self.organisation),
            LimitLevel::Channel => text(self.channel),
            LimitLevel::User => text(self.user),
            LimitLevel::Device => format!("{}:{}", text(self.user), text(self.device)),
            LimitLevel::Conversation if self.is_stranger => {
                format!("{} from {}", text(self.conversation), text(self.user))
            }
            LimitLevel::Conversation => text(self.conversation),
            LimitLevel::Address => self.address.map(|it| it.to_string()).unwrap_or_default(),
            LimitLevel::Content => format!("#{key:016x}"),
            LimitLevel::Key => text(self.key),
        }
    }
}

impl LimitContent<'_> {
    /// Returns the form in which contents are compared. One without text and data is compared as it is encoded.
    pub(super) fn normal_form(self) -> NormalForm {
        let encoded = match self {
            Self::Plain(plain) => return NormalForm::of(plain),
            Self::Encoded(encoded) => encoded,
            Self::Key(_) => return NormalForm::of(&[]),
        };
        if let Some(body) = only_body(encoded) {
            return NormalForm::of(body);
        }
        match Content::decode(encoded).ok().and_then(|content| content.body) {
            Some(ContentBody::Text(text)) => NormalForm::of(text.as_bytes()),
            Some(ContentBody::Data(data)) => NormalForm::of(&data),
            None => NormalForm::of(encoded),
        }
    }
}

/// Returns the text or data of a content that has no other field, as most have, without a copy.
fn only_body(encoded: &[u8]) -> Option<&[u8]> {
    /// Keys of the fields `text` and `data`.
    const BODY_KEYS: [u8; 2] = [0x0a, 0x12];
    let (len, body) = match encoded {
        [key, len, body @ ..] if BODY_KEYS.contains(key) && *len < 0x80 => (usize::from(*len), body),
        [key, low, high, body @ ..] if BODY_KEYS.contains(key) && *high < 0x80 => {
            (usize::from(*low & 0x7f) | usize::from(*high) << 7, body)
        }
        _ => return None,
    };
    (body.len() == len).then_some(body)
}
