//! Statistics of measurements on noisy machines.

/// The value in the middle; of an even number, the mean of the two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The median distance from 1 of ratios that should be 1.
pub fn noise(ratios: &[f64]) -> f64 {
    median(&ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect::<Vec<_>>())
}
