//! Writes a page as SVG.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::font::{self, FAMILY, Weight};
use crate::raster::encode_png;
use crate::rich_text::escape;
use crate::shape::{Anchor, Fill, Page, Shape, Stroke, Text};

/// Where the SVG will be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// As a file, with its fonts and its size.
    File,
    /// Inside an HTML page that has the fonts and decides the size.
    Inline,
}

/// Writes the page. `title` and `description` are for screen readers.
pub(crate) fn write(page: &Page, title: &str, description: &str, purpose: Use) -> String {
    let (width, height) = (number(page.width), number(page.height));
    let mut svg = String::from("<svg xmlns=\"http://www.w3.org/2000/svg\"");
    let size = match purpose {
        Use::File => format!(" width=\"{width}\" height=\"{height}\""),
        Use::Inline => String::new(),
    };
    put(
        &mut svg,
        format_args!(
            "{size} viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"{FAMILY}\">\
             <title>{}</title>",
            escape(title)
        ),
    );
    if !description.is_empty() {
        put(&mut svg, format_args!("<desc>{}</desc>", escape(description)));
    }
    if purpose == Use::File {
        put(&mut svg, format_args!("<style>{}</style>", font::css()));
    }
    put(&mut svg, format_args!("<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"));
    for shape in &page.shapes {
        write_shape(&mut svg, shape);
    }
    svg.push_str("</svg>\n");
    svg
}

fn write_shape(svg: &mut String, shape: &Shape) {
    match shape {
        Shape::Path { parts, closed, fill, stroke } => {
            let mut data = String::new();
            for part in parts {
                for (i, (x, y)) in part.iter().enumerate() {
                    let command = if i == 0 { 'M' } else { 'L' };
                    put(&mut data, format_args!("{command}{} {}", number(*x), number(*y)));
                }
                if *closed {
                    data.push('Z');
                }
            }
            put(svg, format_args!("<path d=\"{data}\"{}/>", paint(*fill, *stroke)));
        }
        Shape::Circle { center: (x, y), radius, fill, stroke } => put(
            svg,
            format_args!(
                "<circle cx=\"{}\" cy=\"{}\" r=\"{}\"{}/>",
                number(*x),
                number(*y),
                number(*radius),
                paint(*fill, *stroke)
            ),
        ),
        Shape::Text(text) => write_text(svg, text),
        Shape::Pixels { area, columns, rows, rgba } => put(
            svg,
            format_args!(
                "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
                 style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>",
                number(area.x),
                number(area.y),
                number(area.width),
                number(area.height),
                STANDARD.encode(encode_png(*columns, *rows, rgba).unwrap_or_default())
            ),
        ),
        Shape::Clipped { area, shapes } => {
            // A nested svg clips without an id, and ids would clash between figures of one report.
            let [x, y, w, h] = [area.x, area.y, area.width, area.height].map(number);
            put(
                svg,
                format_args!(
                    "<svg x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" \
                     viewBox=\"{x} {y} {w} {h}\" overflow=\"hidden\">"
                ),
            );
            for shape in shapes {
                write_shape(svg, shape);
            }
            svg.push_str("</svg>");
        }
    }
}

fn write_text(svg: &mut String, text: &Text) {
    let (x, y) = (number(text.at.0), number(text.at.1));
    put(
        svg,
        format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" fill=\"{}\"",
            number(text.size),
            text.color.hex()
        ),
    );
    match text.anchor {
        Anchor::Start => {}
        Anchor::Middle => svg.push_str(" text-anchor=\"middle\""),
        Anchor::End => svg.push_str(" text-anchor=\"end\""),
    }
    if text.weight == Weight::SemiBold {
        svg.push_str(" font-weight=\"600\"");
    }
    if text.rotate != 0.0 {
        put(svg, format_args!(" transform=\"rotate({} {x} {y})\"", number(text.rotate)));
    }
    svg.push('>');
    let mut shift = 0.0;
    for piece in font::place(&text.text, text.size, text.weight).0 {
        let content = escape(&piece.text);
        if piece.dy == shift && piece.size == text.size {
            svg.push_str(&content);
        } else {
            // `dy` moves everything that follows, so each piece undoes the one before it.
            put(
                svg,
                format_args!(
                    "<tspan dy=\"{}\" font-size=\"{}\">{content}</tspan>",
                    number(piece.dy - shift),
                    number(piece.size)
                ),
            );
            shift = piece.dy;
        }
    }
    svg.push_str("</text>");
}

fn paint(fill: Option<Fill>, stroke: Option<Stroke>) -> String {
    let mut text = String::new();
    match fill {
        None => text.push_str(" fill=\"none\""),
        Some(fill) => {
            put(&mut text, format_args!(" fill=\"{}\"", fill.color.hex()));
            if fill.opacity < 1.0 {
                put(&mut text, format_args!(" fill-opacity=\"{}\"", number(fill.opacity)));
            }
        }
    }
    if let Some(stroke) = stroke {
        put(
            &mut text,
            format_args!(
                " stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"",
                stroke.color.hex(),
                number(stroke.width)
            ),
        );
        if !stroke.dash.is_empty() {
            let dash: Vec<String> = stroke.dash.iter().map(|length| number(*length)).collect();
            put(&mut text, format_args!(" stroke-dasharray=\"{}\"", dash.join(" ")));
        }
    }
    text
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(arguments);
}

/// Two decimals: hundredths of a unit are finer than any screen or printer.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}
