//! When each `HTCPool` is looked at. One is looked at by one task at a time, and waits for no other one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::api::ObjectName;

/// The state of each pool's looks.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Counts the news.
    news: u64,
    of: HashMap<ObjectName, Look>,
}

#[derive(Clone, Copy, Debug)]
enum Look {
    /// Under way since so much news had come.
    UnderWay(u64),
    /// The next one is at this time, or with the next news.
    Next(Option<Instant>),
}

impl Due {
    /// Something has changed: all are looked at, after a look that is under way once more.
    pub(super) fn have_news(&mut self) {
        self.news += 1;
        for look in self.of.values_mut() {
            if matches!(look, Look::Next(_)) {
                *look = Look::Next(Some(Instant::now()));
            }
        }
    }

    /// The places of those that are to be looked at now. Their looks are under way from now on.
    pub(super) fn take(&mut self, names: &[ObjectName], now: Instant) -> Vec<usize> {
        self.of.retain(|name, look| matches!(look, Look::UnderWay(_)) || names.contains(name));
        let mut places = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let is_due = match self.of.get(name) {
                None => true,
                Some(Look::UnderWay(_)) => false,
                Some(Look::Next(at)) => at.is_some_and(|at| at <= now),
            };
            if is_due {
                self.of.insert(name.clone(), Look::UnderWay(self.news));
                places.push(place);
            }
        }
        places
    }

    /// A look is over; the next one is after `again`, or with the next news.
    pub(super) fn looked_at(&mut self, name: &ObjectName, again: Option<Duration>, now: Instant) {
        let Some(look) = self.of.get_mut(name) else { return };
        let came_meanwhile = matches!(look, Look::UnderWay(news) if *news != self.news);
        *look = Look::Next(if came_meanwhile { Some(now) } else { again.map(|again| now + again) });
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let times = self.of.values().filter_map(|look| match look {
            Look::UnderWay(_) => None,
            Look::Next(at) => *at,
        });
        times.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> ObjectName {
        ObjectName { namespace: "n".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_look_that_lasts_holds_up_no_other() {
        let (mut due, now) = (Due::default(), Instant::now());
        let names = ["hangs", "well"].map(named);
        assert_eq!(due.take(&names, now), [0, 1]);
        assert_eq!(due.next(), None);
        let later = Duration::from_secs(2);
        due.looked_at(&names[1], Some(later), now);
        assert_eq!((due.take(&names, now), due.next()), (vec![], Some(now + later)));
        assert_eq!(due.take(&names, now + later), [1]);
        due.looked_at(&names[1], None, now);
        assert_eq!(due.next(), None);
        due.have_news();
        assert_eq!(due.take(&names, Instant::now()), [1], "the other one is under way");
        due.looked_at(&names[0], None, now);
        assert_eq!(due.take(&names, now), [0], "there was news meanwhile");
    }

    #[test]
    fn what_is_gone_is_forgotten_once_its_look_is_over() {
        let (mut due, now) = (Due::default(), Instant::now());
        let names = ["gone", "there"].map(named);
        assert_eq!(due.take(&names, now), [0, 1]);
        due.looked_at(&names[1], None, now);
        assert!(due.take(&names[1..], now).is_empty());
        due.looked_at(&names[0], None, now);
        assert!(due.take(&names[1..], now).is_empty());
        assert_eq!(due.of.len(), 1);
    }
}
