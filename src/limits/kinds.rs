//! Kinds of limits: the levels whose subjects are counted, their keys, and the calls that count.

/// Level of a rule: the kind of subject that has a window of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitLevel {
    /// Whole node.
    Node,
    /// Organisation, from the claim `org` of the token.
    Organisation,
    /// Channel, from the claim `chan` of the token, or from a header of a request to the admin API.
    Channel,
    /// User.
    User,
    /// Device of a user.
    Device,
    /// Conversation.
    Conversation,
    /// IPv4 address or IPv6 /64.
    Address,
    /// Text of a message, without regard to case, spaces and the values of digits.
    Content,
    /// Key of the admin port.
    Key,
}

impl LimitLevel {
    /// All levels, from the widest to the narrowest.
    pub const ALL: [Self; 9] = [
        Self::Node,
        Self::Organisation,
        Self::Channel,
        Self::User,
        Self::Device,
        Self::Conversation,
        Self::Address,
        Self::Content,
        Self::Key,
    ];

    /// Returns the name in rules, metrics and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Organisation => "org",
            Self::Channel => "channel",
            Self::User => "user",
            Self::Device => "device",
            Self::Conversation => "conversation",
            Self::Address => "address",
            Self::Content => "content",
            Self::Key => "key",
        }
    }

    /// Returns the level with the name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// Returns whether a client may learn the rule and its numbers: they concern only what is its own.
    pub const fn is_of_client(self) -> bool {
        matches!(self, Self::User | Self::Device | Self::Conversation)
    }

    /// Returns whether each request of a subject of `narrow` is also one of a single subject of this level.
    pub fn contains(self, narrow: Self) -> bool {
        self == Self::Node || self == narrow || (self == Self::User && narrow == Self::Device)
    }

    /// Returns whether a request of this kind has a subject of the level.
    pub const fn is_in(self, call: LimitCall) -> bool {
        match self {
            Self::Node | Self::Address => true,
            Self::Key => call.is_api(),
            Self::Content => matches!(call, LimitCall::Send | LimitCall::ApiSend),
            Self::Conversation => matches!(
                call,
                LimitCall::Send
                    | LimitCall::ApiSend
                    | LimitCall::Join
                    | LimitCall::Pull
                    | LimitCall::Signal
                    | LimitCall::React
                    | LimitCall::Recall
                    | LimitCall::Change
            ),
            Self::Channel => !matches!(call, LimitCall::Connect),
            Self::User if matches!(call, LimitCall::ApiSend) => true,
            Self::Organisation | Self::User | Self::Device => {
                !call.is_api() && !matches!(call, LimitCall::Connect)
            }
        }
    }
}

/// Kind of request that rules count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitCall {
    /// New connection.
    Connect,
    /// Login with a valid token.
    Login,
    /// Message.
    Send,
    /// Join of a live room.
    Join,
    /// Read of a part of a conversation.
    Pull,
    /// Query of the states or positions of conversations.
    Sync,
    /// Signal.
    Signal,
    /// Reaction to a live room.
    React,
    /// Recall of a message.
    Recall,
    /// `read`, `clear`, `hide`, and `leave` of a group.
    Change,
    /// Request `GET` to the admin API.
    ApiGet,
    /// Request `POST` to the admin API.
    ApiPost,
    /// Request `PUT` to the admin API.
    ApiPut,
    /// Request `DELETE` to the admin API.
    ApiDelete,
    /// Message that a request to the admin API sends; a batch has many.
    ApiSend,
}

impl LimitCall {
    /// All calls.
    pub const ALL: [Self; 15] = [
        Self::Connect,
        Self::Login,
        Self::Send,
        Self::Join,
        Self::Pull,
        Self::Sync,
        Self::Signal,
        Self::React,
        Self::Recall,
        Self::Change,
        Self::ApiGet,
        Self::ApiPost,
        Self::ApiPut,
        Self::ApiDelete,
        Self::ApiSend,
    ];

    /// Returns the name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Login => "login",
            Self::Send => "send",
            Self::Join => "join",
            Self::Pull => "pull",
            Self::Sync => "sync",
            Self::Signal => "signal",
            Self::React => "react",
            Self::Recall => "recall",
            Self::Change => "change",
            Self::ApiGet => "api:get",
            Self::ApiPost => "api:post",
            Self::ApiPut => "api:put",
            Self::ApiDelete => "api:delete",
            Self::ApiSend => "api:send",
        }
    }

    /// Returns the call of a request to the admin API.
    pub fn of_api(method: &str) -> Option<Self> {
        // A PATCH replaces a part, as a PUT does the whole.
        let method = if method == "patch" { "put" } else { method };
        Self::ALL.into_iter().find(|call| call.name().strip_prefix("api:") == Some(method))
    }

    /// Returns whether the call is a request to the admin API.
    pub const fn is_api(self) -> bool {
        matches!(self, Self::ApiGet | Self::ApiPost | Self::ApiPut | Self::ApiDelete | Self::ApiSend)
    }
}

/// Set of calls that a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSet(u16);

impl CallSet {
    /// Returns whether the set has the call.
    pub const fn has(self, call: LimitCall) -> bool {
        self.0 & (1 << call as u16) != 0
    }

    /// Returns whether the set has all calls of `other`.
    pub const fn has_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Adds the calls that `name` stands for: one, all requests to the API (`api:*`), or every request (`*`). Messages of the
    /// API are named only by `api:send`, because their requests count already. Returns whether there are any.
    pub fn add(&mut self, name: &str) -> bool {
        let of_name = |call: &LimitCall| match name {
            "*" => *call != LimitCall::ApiSend,
            "api:*" => call.is_api() && *call != LimitCall::ApiSend,
            name => call.name() == name,
        };
        let named = LimitCall::ALL.into_iter().filter(of_name);
        let added = named.fold(0, |added, call| added | 1 << call as u16);
        self.0 |= added;
        added != 0
    }

    /// Returns the calls.
    pub fn iter(self) -> impl Iterator<Item = LimitCall> {
        LimitCall::ALL.into_iter().filter(move |call| self.has(*call))
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Levels whose subjects all requests of a connection have.
pub(super) const CONNECTION_LEVELS: [LimitLevel; 5] = [
    LimitLevel::Organisation,
    LimitLevel::Channel,
    LimitLevel::User,
    LimitLevel::Device,
    LimitLevel::Address,
];

/// Keys by level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeySet {
    /// Levels whose key is computed, one bit each.
    computed: u16,
    /// Levels that have a subject.
    present: u16,
    keys: [u64; LimitLevel::ALL.len()],
}

/// Keys of a connection's user, device, organisation, channel and address, computed once for all of its requests.
#[derive(Debug)]
pub struct ConnectionKeys(pub(super) KeySet);

impl KeySet {
    /// Returns whether the key of a level is computed.
    pub(super) const fn has(&self, level: LimitLevel) -> bool {
        self.computed & (1 << level as u16) != 0
    }

    /// Sets the key of a level; `None` if the request has no subject of it.
    pub(super) fn set(&mut self, level: LimitLevel, key: Option<u64>) {
        let bit = 1 << level as u16;
        self.computed |= bit;
        if let Some(key) = key {
            self.present |= bit;
            self.keys[level as usize] = key;
        }
    }

    /// Returns the key of a level; `None` if it has no subject or is not computed.
    pub(super) const fn get(&self, level: LimitLevel) -> Option<u64> {
        if self.present & (1 << level as u16) == 0 { None } else { Some(self.keys[level as usize]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_api_count_only_in_rules_that_name_them() {
        for (name, has_posts, has_messages) in
            [("*", true, false), ("api:*", true, false), ("api:post", true, false), ("api:send", false, true)]
        {
            let mut calls = CallSet::default();
            assert!(calls.add(name));
            assert_eq!(
                (calls.has(LimitCall::ApiPost), calls.has(LimitCall::ApiSend)),
                (has_posts, has_messages),
                "{name}"
            );
        }
    }
}
