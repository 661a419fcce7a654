//! Priorities: classes of users in live rooms, as administrators set them on all nodes.
//!
//! The store keeps them (`store/guard.rs`); each node has all in memory, because each login asks for one. They end by the
//! clock of the store.

use tidegate_protocol::id::UserId;

use crate::entry_board::EntryBoard;

/// Highest class of a connection in live rooms; the lowest is 0.
pub const CLASS_MAX: u8 = 3;

/// Part of a queue's bytes, in sixteenths, that only higher classes may use, for each class below the highest.
const RESERVED_SIXTEENTHS: usize = 1;

/// Returns the bytes of a queue that messages of a class may fill: all of them for the highest one, and a sixteenth less for
/// each class below it, so that the lowest class finds the queue full first.
pub const fn class_share(bytes_max: usize, class: u8) -> usize {
    let below = CLASS_MAX.saturating_sub(class) as usize;
    bytes_max - bytes_max / 16 * RESERVED_SIXTEENTHS * below
}

/// Class of a user that an administrator has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserPriority {
    /// Class, at most [`CLASS_MAX`].
    pub class: u8,
    /// End by the store's clock, in ms since 1970; `None` if it lasts until it is removed.
    pub until_ms: Option<u64>,
}

impl UserPriority {
    /// Returns whether it has ended at `now_ms`.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until| until <= now_ms)
    }
}

/// Classes that administrators have set, as this node knows them.
pub type Priorities = EntryBoard<UserId, UserPriority>;

impl Priorities {
    /// Returns the class of a connection: the one that is set for its user, else the one of its token.
    pub fn class(&self, user: &UserId, claimed: Option<u8>) -> u8 {
        let set = self.get(user).map(|priority| priority.class);
        set.or(claimed).unwrap_or_default().min(CLASS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry_board::ChangedKeys;

    fn user(name: &str) -> UserId {
        UserId::new(name).unwrap()
    }

    #[test]
    fn lower_classes_find_a_queue_full_first() {
        assert_eq!(
            [0, 1, 2, 3, 9].map(|class| class_share(1_600, class)),
            [1_300, 1_400, 1_500, 1_600, 1_600]
        );
        assert_eq!(class_share(10, 0), 10, "too small to reserve anything");
    }

    #[test]
    fn set_class_is_in_force_over_that_of_the_token_until_it_ends() {
        let priorities = Priorities::default();
        let of = |claimed| priorities.class(&user("ann"), claimed);
        assert_eq!((of(None), of(Some(1)), of(Some(9))), (0, 1, CLASS_MAX));
        priorities.set(&user("ann"), Some(UserPriority { class: 2, until_ms: Some(10) }));
        assert_eq!((of(None), of(Some(3))), (2, 2));
        priorities.expire(|it| it.has_ended(9));
        assert_eq!(of(Some(3)), 2);
        priorities.expire(|it| it.has_ended(10));
        assert_eq!(of(Some(3)), 3);
        assert_eq!(priorities.changed_since(1), (ChangedKeys::Named(vec![user("ann")]), 2));
    }
}
