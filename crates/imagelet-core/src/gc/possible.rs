//! What could be freed, also where no room is wanted and the plan had no reason to reckon it.

use super::{GcGoal, PlanInput, Planned, plan};
use crate::{image::ByteSize, runtime::Freed};

impl Planned {
    /// What would be free if all that may go went, by the layers that are known.
    pub fn could_free(&self) -> ByteSize {
        let could_free = if self.plan.wanted.is_some() || self.input.goal == GcGoal::AllUnused {
            self.plan.could_free
        } else {
            plan(&PlanInput { goal: GcGoal::AllUnused, ..self.input.clone() }).could_free
        };
        let freed = Freed { bytes: could_free, inodes: 0 };
        let disk = self.input.disk.as_ref();
        disk.map_or(freed, |disk| disk.at_most_used(freed, self.plan.certainty)).bytes
    }
}
