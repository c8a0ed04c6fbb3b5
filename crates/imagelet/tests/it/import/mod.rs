//! Native import into real containerds: what imagelet puts there is what containerd's own pull would have put.

mod crash;
mod dump;
mod ended_pods;
mod equality;
mod mounted;
mod node;
mod orphan;
mod races;
mod refusals;
mod samples;
mod volumes;
