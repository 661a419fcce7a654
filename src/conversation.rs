//! Conversation queries and personal changes: history, sync, unread counts, marks, recalls, cleared and hidden entries.

pub mod clear;
pub mod group_size;
pub mod hide;
pub mod history;
pub mod mark_read;
pub mod read_budget;
pub mod read_position;
pub mod reader;
pub mod recall;
mod refusal;
mod seek;
pub mod sync;
mod time_search;
pub mod unread;
