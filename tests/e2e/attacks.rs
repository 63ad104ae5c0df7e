//! What somebody tries who may create HTCJobs and Secrets in one namespace, and has credentials of his own for the pool.

mod confinement;
mod output;

on_both_versions!(
    confinement::tools_touch_their_own_folder_only,
    confinement::what_it_gave_up_does_not_come_back,
    output::goes_to_its_own_place_only,
    output::goes_to_its_own_place_without_confinement,
);
