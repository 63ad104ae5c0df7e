//! Annotations by which users take a decision that the machine must not take alone.

/// Annotation: `"true"` releases a deleted object although its jobs may be left in HTCondor.
pub const ABANDON_ANNOTATION: &str = "htc.cern.ch/abandon";
/// Annotation: `"true"` lets an object be submitted again although HTCondor's history no longer reaches back far enough
/// to prove that the earlier attempt never was accepted, or its queue was lost since.
pub const SUBMIT_AGAIN_ANNOTATION: &str = "htc.cern.ch/submit-again";
