//! The questions to `judge`, put to facts.

use htc_machine::Rules;
use htc_machine::facts::Facts;
use htc_machine::judge;
use htc_machine::judge::{Doubt, NeverAttempted, ProvenGone, ProvenNeverAccepted, Sightings};

use crate::given::{indices, settings};

pub const ALL: Rules = Rules::ALL;

pub fn without(change: impl Fn(&mut Rules)) -> Rules {
    let mut rules = ALL;
    change(&mut rules);
    rules
}

pub fn prove_gone(facts: &Facts) -> Result<ProvenGone, Doubt> {
    prove_gone_by(facts, &ALL)
}

pub fn prove_gone_by(facts: &Facts, rules: &Rules) -> Result<ProvenGone, Doubt> {
    judge::prove_gone(&facts.object, &facts.record, facts.past, &facts.evidence, &settings(), rules)
}

pub fn never_accepted(facts: &Facts) -> Result<ProvenNeverAccepted, Doubt> {
    never_accepted_by(facts, "0", &ALL)
}

pub fn never_accepted_by(facts: &Facts, jobs: &str, rules: &Rules) -> Result<ProvenNeverAccepted, Doubt> {
    let sightings = Sightings::new(&facts.evidence, rules);
    judge::prove_never_accepted(
        &facts.object,
        &facts.record,
        facts.past,
        &indices(jobs),
        &facts.evidence,
        &sightings,
        &settings(),
        rules,
    )
}

pub fn never_attempted(facts: &Facts, jobs: &str, rules: &Rules) -> Result<NeverAttempted, Doubt> {
    judge::never_attempted(&facts.object, &facts.record, facts.past, &indices(jobs), rules)
}
