//! Cookies of directory listings: a read goes on after its cookie, however the directory changes
//! meanwhile.
//!
//! The kernel may read a directory without opening or closing it here, so that a listing in its
//! cache takes no call at all. So a cookie is a place in the directory, not in an open handle.
//! Cookies are in the order of names. An entry keeps its cookie while the listing is remembered and
//! the name stays. A new name gets a cookie between those of its neighbours. Only when there is no
//! room between two of them do all cookies begin anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use types::{FileId, Time};

/// `.` and `..`, which have the first cookies.
pub(crate) const DOT_COUNT: u64 = 2;
/// The greatest cookie.
const COOKIE_MAX: u64 = 1 << 62;
/// Distance between the cookies of a small directory.
const DISTANCE_MAX: u64 = 1 << 40;
/// Distance of cookies for names that come after all others, as numbers and dates often do,
const END_DISTANCE_MAX: u64 = 1 << 32;
/// but at most this part of the remaining room at a time.
const END_PART: u64 = 64;
/// Most entries that are remembered, over all directories. The directory that was listed last is
/// remembered whole.
const ENTRY_COUNT_MAX: usize = 1 << 18;
/// Seconds after which a listing in progress goes on with the directory's present names.
const AGE_MAX: i64 = 1;

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) id: FileId,
    pub(crate) cookie: u64,
}

/// The entries of a directory, in the order of names and of cookies.
pub(crate) type Listing = Arc<[Listed]>;

struct Known {
    listing: Listing,
    number: u64,
    begun: Time,
}

/// The listings that are remembered, by directory.
#[derive(Default)]
pub(crate) struct Listings {
    by_dir: BTreeMap<FileId, Known>,
    by_age: BTreeMap<u64, FileId>,
    /// How many listings were begun.
    begun: u64,
    entries: usize,
}

impl Listings {
    /// Begins a listing of a directory's present names.
    pub(crate) fn begin(&mut self, dir: FileId, names: BTreeMap<Vec<u8>, FileId>, now: Time) -> Listing {
        let before = self.forget(dir);
        let before: &[Listed] = before.as_deref().unwrap_or_default();
        let kept = if before.is_empty() { None } else { between(before, &names) };
        let cookies = kept.unwrap_or_else(|| anew(names.len()));
        let entries = names.into_iter().zip(cookies).map(|((name, id), cookie)| Listed { name, id, cookie });
        let listing: Listing = entries.collect();
        while self.entries + cost(&listing) > ENTRY_COUNT_MAX
            && let Some((_, oldest)) = self.by_age.first_key_value()
        {
            self.forget(*oldest);
        }
        self.begun += 1;
        self.entries += cost(&listing);
        self.by_age.insert(self.begun, dir);
        self.by_dir.insert(dir, Known { listing: listing.clone(), number: self.begun, begun: now });
        listing
    }

    /// The listing that was begun last. `None`: it was forgotten or is too old, and has to begin
    /// again.
    pub(crate) fn of(&self, dir: FileId, now: Time) -> Option<Listing> {
        let is_new = |known: &&Known| (0..=AGE_MAX).contains(&now.sec.saturating_sub(known.begun.sec));
        self.by_dir.get(&dir).filter(is_new).map(|known| known.listing.clone())
    }

    /// A directory turned out to be another: moves its listing there.
    pub(crate) fn became(&mut self, dir: FileId, real: FileId) {
        if let Some(known) = self.by_dir.remove(&dir) {
            self.forget(real);
            self.by_age.insert(known.number, real);
            self.by_dir.insert(real, known);
        }
    }

    fn forget(&mut self, dir: FileId) -> Option<Listing> {
        let Known { listing, number, .. } = self.by_dir.remove(&dir)?;
        self.by_age.remove(&number);
        self.entries -= cost(&listing);
        Some(listing)
    }
}

/// What a listing counts towards [`ENTRY_COUNT_MAX`].
fn cost(listing: &[Listed]) -> usize {
    listing.len() + 1
}

/// The entries after a cookie.
pub(crate) fn after(listing: &[Listed], cookie: u64) -> &[Listed] {
    &listing[listing.partition_point(|entry| entry.cookie <= cookie)..]
}

/// Cookies for `count` names that have none yet.
fn anew(count: usize) -> Vec<u64> {
    let count = count as u64;
    // Half of the room is left for later names.
    let distance = (COOKIE_MAX / 2 / (count + 1)).clamp(1, DISTANCE_MAX);
    (1..=count).map(|at| DOT_COUNT + at * distance).collect()
}

/// Cookies for names. Some have one already. `None` if there is no room between two of
/// these.
fn between(before: &[Listed], names: &BTreeMap<Vec<u8>, FileId>) -> Option<Vec<u64>> {
    let mut known = before.iter().peekable();
    let mut cookies = Vec::with_capacity(names.len());
    let mut last = DOT_COUNT;
    let mut new = 0;
    for name in names.keys() {
        while known.next_if(|entry| entry.name < *name).is_some() {}
        match known.next_if(|entry| entry.name == *name) {
            None => new += 1,
            Some(entry) => {
                spread(&mut cookies, new, last, entry.cookie)?;
                cookies.push(entry.cookie);
                (last, new) = (entry.cookie, 0);
            }
        }
    }
    let distance = ((COOKIE_MAX - last) / END_PART / (new + 1)).clamp(1, END_DISTANCE_MAX);
    spread(&mut cookies, new, last, (last + (new + 1) * distance).min(COOKIE_MAX))?;
    Some(cookies)
}

/// Adds `count` cookies, evenly between two others.
fn spread(cookies: &mut Vec<u64>, count: u64, from: u64, to: u64) -> Option<()> {
    let distance = (to - from) / (count + 1);
    if count > 0 && distance == 0 {
        return None;
    }
    cookies.extend((1..=count).map(|at| from + at * distance));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIR: FileId = FileId::ROOT;
    const NOW: Time = Time { sec: 100, nsec: 0 };

    fn names(of: impl IntoIterator<Item = u32>) -> BTreeMap<Vec<u8>, FileId> {
        of.into_iter().map(|name| (format!("{name:08}").into_bytes(), FileId::new(u64::from(name) + 2))).collect()
    }

    fn is_sound(listing: &[Listed], of: &BTreeMap<Vec<u8>, FileId>) {
        assert!(listing.iter().map(|entry| (&entry.name, &entry.id)).eq(of));
        assert!(listing.windows(2).all(|two| two[0].cookie < two[1].cookie));
        assert!(listing.iter().all(|entry| (DOT_COUNT + 1..=COOKIE_MAX).contains(&entry.cookie)));
    }

    proptest! {
        #[test]
        fn prop_what_stays_keeps_its_cookie(all in prop::collection::vec(prop::collection::btree_set(0u32..400, 0..60), 1..20)) {
            let mut listings = Listings::default();
            let mut before: Listing = Arc::new([]);
            for of in all {
                let of = names(of);
                let listing = listings.begin(DIR, of.clone(), NOW);
                is_sound(&listing, &of);
                for entry in before.iter() {
                    let still = listing.iter().find(|other| other.name == entry.name);
                    prop_assert!(still.is_none_or(|still| still.cookie == entry.cookie));
                }
                prop_assert_eq!(listings.of(DIR, NOW), Some(listing.clone()));
                before = listing;
            }
        }
    }

    #[test]
    fn without_room_between_two_all_cookies_begin_anew() {
        let mut listings = Listings::default();
        let mut of = names([0, 1000]);
        let first = listings.begin(DIR, of.clone(), NOW);
        // Each name comes right before the previous one.
        for name in (1..100).rev() {
            of.extend(names([name]));
            is_sound(&listings.begin(DIR, of.clone(), NOW), &of);
        }
        assert_ne!(listings.of(DIR, NOW).and_then(|all| all.last().cloned()), first.last().cloned());
    }

    #[test]
    fn names_that_come_last_again_and_again_do_not_use_up_the_room() {
        let mut listings = Listings::default();
        let first = listings.begin(DIR, names(0..10), NOW);
        for count in 1..1000 {
            let listing = listings.begin(DIR, names(0..10 + 40 * count), NOW);
            assert_eq!(listing[..10], first[..]);
        }
    }

    #[test]
    fn large_directories_have_cookies_too() {
        let of = names(0..2 * ENTRY_COUNT_MAX as u32);
        let mut listings = Listings::default();
        is_sound(&listings.begin(DIR, of.clone(), NOW), &of);
        assert!(listings.of(DIR, NOW).is_some());
    }

    #[test]
    fn those_listed_long_ago_are_forgotten_when_there_are_too_many() {
        let mut listings = Listings::default();
        let half = names(0..ENTRY_COUNT_MAX as u32 / 2 - 1);
        let [first, second, third] = [1, 2, 3].map(FileId::new);
        listings.begin(first, half.clone(), NOW);
        listings.begin(second, half.clone(), NOW);
        let again = listings.begin(first, half.clone(), NOW);
        listings.begin(third, half, NOW);
        assert_eq!((listings.of(first, NOW), listings.of(second, NOW)), (Some(again), None));
    }

    #[test]
    fn a_listing_that_takes_long_goes_on_with_what_is_there_by_then() {
        let mut listings = Listings::default();
        let listing = listings.begin(DIR, names(0..3), NOW);
        for (sec, known) in [(NOW.sec + AGE_MAX, Some(listing)), (NOW.sec + AGE_MAX + 1, None), (NOW.sec - 1, None)] {
            assert_eq!(listings.of(DIR, Time { sec, nsec: 0 }), known);
        }
    }

    #[test]
    fn what_comes_after_a_cookie_does_not_need_its_entry() {
        let mut listings = Listings::default();
        let listing = listings.begin(DIR, names(0..10), NOW);
        for (at, entry) in listing.iter().enumerate() {
            assert_eq!(after(&listing, entry.cookie), &listing[at + 1..]);
            assert_eq!(after(&listing, entry.cookie - 1), &listing[at..]);
        }
        assert_eq!(after(&listing, 0), &listing[..]);
    }

    #[test]
    fn a_directory_that_became_another_goes_on_being_listed() {
        let mut listings = Listings::default();
        let (dir, real) = (FileId::new(7), FileId::new(8));
        listings.begin(real, names(0..3), NOW);
        let listing = listings.begin(dir, names(0..5), NOW);
        listings.became(dir, real);
        assert_eq!((listings.of(dir, NOW), listings.of(real, NOW)), (None, Some(listing)));
        assert_eq!((listings.entries, listings.by_age.len()), (6, 1));
    }
}
