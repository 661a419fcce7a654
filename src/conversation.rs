//! Conversation queries and personal changes, by clients and administrators: history, sync, lists, unread counts, marks,
//! recalls, cleared and hidden entries.

pub mod clear;
pub mod consistent;
pub mod edit;
pub(crate) mod entry_size;
pub mod group_size;
pub mod hide;
pub mod history;
pub mod mark_read;
pub mod newest;
pub mod overview;
pub mod read_budget;
pub mod read_position;
pub mod reader;
pub mod recall;
pub(crate) mod refusal;
mod seek;
pub mod sync;
mod time_search;
pub mod unread;
pub mod unread_counts;
