//! Which stores a segment goes to: its stripe group (Dahlin, section 4.2).

use crate::stripe::Stripe;
use striped_log::fragment::{DATA_FRAGMENTS_MAX, FRAGMENT_LEN_MAX};
use striped_log::geometry::Geometry;
use striped_log::segment::Segment;
use types::StoreId;

impl Stripe {
    /// Chooses a group of healthy stores for a segment, and plans the stripe over it. `None` if
    /// there are too few. The first member moves on with each segment, so that load and parity
    /// spread over all stores.
    pub(crate) fn choose_group(&self, segment: &Segment) -> Option<Geometry> {
        let mut up = self.health.lock().up();
        let soon = self.quick_ones(&up);
        if self.suffice(soon.len()) {
            up = soon;
        }
        let m = self.options.parity;
        let k_max = up.len().checked_sub(usize::from(m))?.min(DATA_FRAGMENTS_MAX) as u8;
        let payload_len = u32::try_from(segment.payload.len()).ok()?;
        if k_max == 0 || payload_len > u32::from(k_max) * FRAGMENT_LEN_MAX {
            return None;
        }
        let (k, fragment_len) = Geometry::plan(payload_len, k_max, m);
        let first = segment.id.seq.wrapping_add(u64::from(segment.id.log.raw())) % up.len() as u64;
        let width = usize::from(k) + usize::from(m);
        let members: Vec<StoreId> =
            up.iter().cycle().skip(first as usize).take(width).map(|&at| self.stores[at].id).collect();
        Some(Geometry { k, m, fragment_len, payload_len, members })
    }

    /// The members of `stores` that answer puts soon.
    pub(crate) fn quick_ones(&self, stores: &[usize]) -> Vec<usize> {
        stores.iter().copied().filter(|&at| self.takes_puts_soon(at)).collect()
    }

    /// True if a segment of any length can be put to this many stores.
    pub(crate) fn suffice(&self, store_count: usize) -> bool {
        store_count + usize::from(self.options.parity) >= self.stores.len()
    }
}
