//! Positions in an erasure, and their cursors.

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
};

use crate::{
    api::{
        Problem,
        conversations::cursor::{CursorPosition, ListName},
    },
    store::ConversationSeq,
};

/// Part of the erasure that comes next.
pub(super) enum ErasureStage {
    /// Groups above this one are left; without one, connections are closed first.
    Groups(Option<ConversationId>),
    /// Messages after this position are recalled.
    Messages(Option<ConversationSeq>),
    /// The block list is removed, and what has no list.
    Rest,
}

/// Position in an erasure, which a cursor names.
pub(super) struct ErasurePosition {
    /// Stage with the last entry that is finished.
    pub(super) stage: ErasureStage,
    /// Whether this pass over everything found something, so that another one has to follow.
    pub(super) is_changed: bool,
}

impl ErasurePosition {
    /// Position of a request without a cursor, and of each further pass.
    pub(super) const START: Self = Self { stage: ErasureStage::Groups(None), is_changed: false };

    fn list<T>(user: &UserId, is_changed: bool, with: impl FnOnce(ListName<'_>) -> T) -> T {
        let pass = if is_changed { "changed" } else { "unchanged" };
        with(ListName { name: "erasure", filters: &[user.as_str(), pass] })
    }

    /// Returns the position of a cursor.
    ///
    /// # Errors
    /// `CURSOR_INVALID` if it is none of an erasure of this user.
    pub(super) fn of(user: &UserId, cursor: Option<&str>) -> Result<Self, Problem> {
        let Some(cursor) = cursor else { return Ok(Self::START) };
        let found = [false, true].into_iter().find_map(|is_changed| {
            let position = Self::list(user, is_changed, |list| list.position(cursor)).ok()?;
            let stage = match position {
                CursorPosition::After(0) => ErasureStage::Groups(None),
                CursorPosition::Key(after) => ErasureStage::Groups(Some(after)),
                CursorPosition::After(1) => ErasureStage::Messages(None),
                CursorPosition::Row(after) => ErasureStage::Messages(Some(after)),
                CursorPosition::User(_) => ErasureStage::Rest,
                _ => return None,
            };
            Some(Self { stage, is_changed })
        });
        found.ok_or_else(|| Problem(Code::CursorInvalid, String::new()))
    }

    /// Returns the cursor of the position.
    pub(super) fn cursor(&self, user: &UserId) -> String {
        let position = match &self.stage {
            ErasureStage::Groups(None) => CursorPosition::After(0),
            ErasureStage::Groups(Some(after)) => CursorPosition::Key(after.clone()),
            ErasureStage::Messages(None) => CursorPosition::After(1),
            ErasureStage::Messages(Some(after)) => CursorPosition::Row(after.clone()),
            ErasureStage::Rest => CursorPosition::User(user.clone()),
        };
        Self::list(user, self.is_changed, |list| list.cursor(&position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_keeps_position_and_whether_the_pass_found_something() {
        let user = UserId::new("ann").expect("an id");
        let group = ConversationId::parse("g:tea").expect("a key");
        for is_changed in [false, true] {
            for stage in [
                ErasureStage::Groups(None),
                ErasureStage::Groups(Some(group.clone())),
                ErasureStage::Messages(None),
                ErasureStage::Messages(Some(ConversationSeq { conversation: group.clone(), seq: 7 })),
                ErasureStage::Rest,
            ] {
                let cursor = ErasurePosition { stage, is_changed }.cursor(&user);
                let found = ErasurePosition::of(&user, Some(&cursor)).ok().expect("a position");
                assert_eq!((found.cursor(&user), found.is_changed), (cursor.clone(), is_changed));
                let other = UserId::new("bob").expect("an id");
                assert!(ErasurePosition::of(&other, Some(&cursor)).is_err());
            }
        }
    }
}
