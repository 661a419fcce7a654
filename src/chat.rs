//! The use-cases of conversations, one verb a file.

pub mod admin;
pub mod deliver;
pub mod history;
pub mod login;
pub mod owner;
pub mod receipt;
pub mod retention;
pub mod send;
pub mod sync;
pub mod unread;
