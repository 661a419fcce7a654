//! Keys of the admin port: form, scopes, the file with their hashes, and the check of a key that a caller presents.

mod file;
mod ring;
mod scope;
mod secret;

pub use self::{
    file::{KEYS_MAX, KeyEntry, KeyFileLock, load_keys},
    ring::{KeyHolder, KeyRejection, KeyRing},
    scope::Scope,
    secret::{KEY_PREFIX, SecretKey},
};
