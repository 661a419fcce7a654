//! The use-cases of conversations, one verb a file.

pub mod admin;
pub mod deliver;
pub mod login;
pub mod owner;
pub mod send;
