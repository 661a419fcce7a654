//! Modes of a message: what its flags, its sender and a refusal outside of the ledger make of it.

use crate::code::Code;

/// Flag: the content is pushed, and not stored.
pub const TRANSIENT: u32 = 1;
/// Flag: the message does not count as unread.
pub const SILENT: u32 = 2;
/// Flag: push providers get no notice.
pub const NO_PUSH: u32 = 4;
/// Flag that only nodes set: a hook that should have decided about the message did not answer.
pub const UNCHECKED: u32 = 1 << 16;

/// Flags that a client or a back end may set.
pub const FLAGS_TO_SEND: u32 = TRANSIENT | SILENT | NO_PUSH;

/// Returns the words of flags, as histories and events show them.
pub fn flag_words(flags: u32) -> Vec<&'static str> {
    let all = [(TRANSIENT, "transient"), (SILENT, "silent"), (NO_PUSH, "noPush"), (UNCHECKED, "unchecked")];
    all.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, word)| word).collect()
}

/// Flags that the ledger decides by.
const DECIDED: u32 = TRANSIENT | SILENT;

/// Codes that a message may be denied with, in addition to those of the application: the permanent ones that fit a message.
/// Another number makes a record invalid, so that nodes that agree on the rules skip the same records. A new code needs a new
/// version of the rules.
const DENIALS: [Code; 8] = [
    Code::BadContent,
    Code::Forbidden,
    Code::NotAMember,
    Code::Banned,
    Code::NotFound,
    Code::ContentTooLarge,
    Code::TooLate,
    Code::Muted,
];

/// Mode of a message, by which the ledger decides since version 5 of its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MessageMode {
    /// Whether the row is stored without the content.
    pub is_transient: bool,
    /// Whether the message has no ordinal, so that it does not count as unread.
    pub is_silent: bool,
    /// Whether the operator sent it: without a membership, and in spite of a mute.
    pub is_operator: bool,
    /// Refusal by the application or a block list; the content is left out.
    pub denied: Option<Code>,
}

impl MessageMode {
    /// Returns the mode that a sender asks for by these flags.
    pub const fn of_flags(flags: u32) -> Self {
        Self {
            is_transient: flags & TRANSIENT != 0,
            is_silent: flags & SILENT != 0,
            is_operator: false,
            denied: None,
        }
    }

    /// Returns whether the message is an ordinary one, as all of the former versions of the rules are.
    pub fn is_ordinary(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the flags that the ledger decides by.
    pub(super) const fn flags(self) -> u32 {
        (if self.is_transient { TRANSIENT } else { 0 }) | (if self.is_silent { SILENT } else { 0 })
    }

    /// Returns the flags that receivers get. Of an ordinary message those that mean a mode are left out: a client of a former
    /// version may have set them when they meant nothing.
    pub const fn shown_flags(self, flags: u32) -> u32 {
        flags & (NO_PUSH | UNCHECKED) | self.flags()
    }
}

/// Returns whether all bits of the flags of a record with a mode have a meaning.
pub(super) const fn are_known(flags: u32) -> bool {
    flags & !(DECIDED | NO_PUSH | UNCHECKED) == 0
}

/// Returns the code of a denial, `None` for 0.
///
/// # Errors
/// The number is no code that a message may be denied with.
pub(super) fn denial(number: u32) -> Result<Option<Code>, u32> {
    if number == 0 {
        return Ok(None);
    }
    let code = u16::try_from(number).ok().and_then(Code::from_number);
    let is_denial = |code: &Code| matches!(code, Code::Application(_)) || DENIALS.contains(code);
    code.filter(is_denial).map(Some).ok_or(number)
}
