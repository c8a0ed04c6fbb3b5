//! What could be freed, also where no room is wanted and the plan had no reason to reckon it.

use super::{GcGoal, PlanInput, Planned, plan};
use crate::image::ByteSize;

impl Planned {
    /// What would be free if all that may go went, by the layers that are known.
    pub fn could_free(&self) -> ByteSize {
        if self.plan.wanted.is_some() || self.input.goal == GcGoal::AllUnused {
            return self.plan.could_free;
        }
        plan(&PlanInput { goal: GcGoal::AllUnused, ..self.input.clone() }).could_free
    }
}
