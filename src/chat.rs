//! The use-cases of conversations, one verb a file.

pub mod admin;
pub mod clear;
pub mod deliver;
pub mod hide;
pub mod history;
pub mod login;
pub mod owner;
mod point;
pub mod reader;
pub mod recall;
pub mod receipt;
pub mod retention;
mod seek;
pub mod send;
pub mod sync;
pub mod unread;
