//! Parts of a world that it has in common with the worlds before and after it, as long as they are the same there: a step copies only
//! what it changes.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use ahash::RandomState;
use htc_machine::Timestamp;

/// The hash of a value, by the hasher that stateright tells states apart with; the usual one took a seventh of the time.
pub fn print(value: &impl Hash) -> u64 {
    RandomState::with_seeds(1, 2, 3, 4).hash_one(value)
}

/// What has moments in it.
pub trait Moments {
    /// Calls `each` for all of them, always in the same order.
    fn times(&mut self, each: &mut dyn FnMut(&mut Timestamp));
}

/// A value that others may have as well. To change it is to take a copy first, unless nobody else has it: so nothing should borrow it
/// mutably and leave it as it is.
#[derive(Clone, Debug, Default)]
pub struct Shared<T>(Arc<Part<T>>);

#[derive(Debug, Default)]
struct Part<T> {
    value: T,
    /// Once it was asked for.
    print: OnceLock<u64>,
    /// Once they were looked at.
    moments: Option<Vec<Timestamp>>,
}

impl<T: Clone> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), print: OnceLock::new(), moments: None }
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(Part { value, print: OnceLock::new(), moments: None }))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        let part = Arc::make_mut(&mut self.0);
        part.print.take();
        part.moments = None;
        &mut part.value
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: Hash> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(*self.0.print.get_or_init(|| print(&self.0.value)));
    }
}

impl<T: Moments + Clone> Moments for Shared<T> {
    /// It becomes a copy only if a moment changes.
    fn times(&mut self, each: &mut dyn FnMut(&mut Timestamp)) {
        if self.0.moments.is_none() {
            let part = Arc::make_mut(&mut self.0);
            let mut moments = Vec::new();
            part.value.times(&mut |time| moments.push(*time));
            part.moments = Some(moments);
        }
        let mut moments = Cow::Borrowed(self.0.moments.as_deref().unwrap_or_default());
        for place in 0..moments.len() {
            let mut time = moments[place];
            each(&mut time);
            if time != moments[place] {
                moments.to_mut()[place] = time;
            }
        }
        if let Cow::Owned(moments) = moments {
            let part = Arc::make_mut(&mut self.0);
            let mut changed = moments.iter();
            part.value.times(&mut |time| *time = *changed.next().unwrap());
            part.print.take();
            part.moments = Some(moments);
        }
    }
}
