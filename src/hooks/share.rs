//! Shares of users in the questions of a hook: one user can't occupy it alone.

use std::{collections::HashMap, hash::RandomState};

use parking_lot::Mutex;
use tidegate_protocol::id::UserId;

/// Most questions about one user at a time.
const USER_QUESTIONS_MAX: usize = 8;

/// Number of questions in flight, by user; no entry for a user without one.
#[derive(Debug, Default)]
pub(super) struct UserQuestions(Mutex<HashMap<UserId, usize, RandomState>>);

/// Admission of one question; ends on drop.
#[derive(Debug)]
pub(super) struct UserQuestion<'a> {
    questions: &'a UserQuestions,
    user: &'a UserId,
}

impl UserQuestions {
    /// Admits a question about the user, or returns `None` if [`USER_QUESTIONS_MAX`] are in flight.
    pub(super) fn admit<'a>(&'a self, user: &'a UserId) -> Option<UserQuestion<'a>> {
        let mut counts = self.0.lock();
        match counts.get_mut(user) {
            Some(count) if *count >= USER_QUESTIONS_MAX => return None,
            Some(count) => *count += 1,
            None => {
                counts.insert(user.clone(), 1);
            }
        }
        drop(counts);
        Some(UserQuestion { questions: self, user })
    }
}

impl Drop for UserQuestion<'_> {
    fn drop(&mut self) {
        let mut counts = self.questions.0.lock();
        if let Some(count) = counts.get_mut(self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_has_a_share_and_leaves_nothing_behind() {
        let (ann, bob) = (UserId::new("ann").unwrap(), UserId::new("bob").unwrap());
        let questions = UserQuestions::default();
        let mut of_ann: Vec<_> = (0..USER_QUESTIONS_MAX).filter_map(|_| questions.admit(&ann)).collect();
        assert_eq!(of_ann.len(), USER_QUESTIONS_MAX);
        assert!(questions.admit(&ann).is_none());
        let of_bob = questions.admit(&bob);
        assert!(of_bob.is_some(), "another user has a share of his own");
        of_ann.pop();
        of_ann.extend(questions.admit(&ann));
        assert_eq!(of_ann.len(), USER_QUESTIONS_MAX);
        drop((of_ann, of_bob));
        assert!(questions.0.lock().is_empty());
    }
}
