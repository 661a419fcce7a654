//! Queries and changes of conversations: history, unread counts, marks, settings of single users.

pub mod clear;
pub mod group_size;
pub mod hide;
pub mod history;
pub mod mark_read;
pub mod read_position;
pub mod reader;
pub mod recall;
mod seek;
pub mod sync;
pub mod unread;
