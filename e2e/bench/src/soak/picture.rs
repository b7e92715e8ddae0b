//! A picture (SVG) of courses, one below the other, each with its minimum and maximum.

use std::fmt::Write;

use super::course::Course;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 120.0;
const MARGIN: f64 = 24.0;

/// Returns the text of the picture.
pub(super) fn of(courses: &[(String, Course)]) -> String {
    let (width, height) = (WIDTH + 2.0 * MARGIN, (HEIGHT + 2.0 * MARGIN) * courses.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n"
    );
    for (number, (title, course)) in courses.iter().enumerate() {
        let top = (HEIGHT + 2.0 * MARGIN) * number as f64 + MARGIN;
        panel(&mut svg, top, title, course.samples());
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: f64, title: &str, samples: &[(f64, f64)]) {
    let seconds = samples.last().map_or(1.0, |(at, _)| at.max(1.0));
    let values = || samples.iter().map(|(_, value)| *value);
    let (least, largest) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    // The axis starts at zero, so a flat course looks flat.
    let place = |(at, value): &(f64, f64)| {
        let (x, y) = (MARGIN + WIDTH * at / seconds, top + HEIGHT * (1.0 - value / largest.max(1.0)));
        format!("{x:.1},{y:.1}")
    };
    let points: Vec<String> = samples.iter().map(place).collect();
    let text = format!("{title}: {least:.0} to {largest:.0}, {seconds:.0} s");
    // Writing to a String does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{}\">{text}</text>\n<rect x=\"{MARGIN}\" y=\"{top}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/>\n<polyline points=\"{}\" fill=\"none\" \
         stroke=\"#06c\"/>",
        top - 6.0,
        points.join(" ")
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_course_that_doubles_is_drawn_from_the_middle_to_the_top() {
        let mut course = Course::new(Duration::ZERO);
        course.push(Duration::ZERO, 50.0);
        course.push(Duration::from_secs(10), 100.0);
        let svg = of(&[("rss, KiB".to_owned(), course)]);
        assert!(svg.contains("rss, KiB: 50 to 100, 10 s"), "{svg}");
        assert!(svg.contains("points=\"24.0,84.0 924.0,24.0\""), "{svg}");
    }
}
