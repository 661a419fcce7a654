//! Live values: settings that a running node may replace.

use std::sync::Arc;

use parking_lot::RwLock;

/// Value that many threads read, and that a reload replaces as a whole.
#[derive(Debug, Default)]
pub struct Live<T>(RwLock<Arc<T>>);

impl<T> Live<T> {
    /// Creates a value that is in force.
    pub fn new(value: T) -> Self {
        Self(RwLock::new(Arc::new(value)))
    }

    /// Returns the value in force.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read())
    }

    /// Replaces the value by a changed copy.
    pub fn change(&self, change: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        let mut value = T::clone(&self.get());
        change(&mut value);
        self.set(value);
    }

    /// Replaces the value; readers that have the former one keep it.
    pub fn set(&self, value: T) {
        *self.0.write() = Arc::new(value);
    }
}
