//! Lists over all conversations of a user, compared with naive models.

mod newest;
mod overview;
mod sent;
mod unread_counts;
