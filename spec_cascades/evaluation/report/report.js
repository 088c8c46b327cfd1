'use strict';
// Tooltips, highlights, legend and links of a report. A point's figures are
// the cells of its row, so that the two can't differ.
(() => {
  const REACH = 24;               // pixels from a mark that count as on it
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const panels = document.querySelector('.panels');
  // Chromium puts an <svg> that listens to focus into the tab order: its
  // figure listens instead.
  const plots = all('figure', panels);
  const tip = document.getElementById('tip');
  const targetOf = link => document.querySelector(link.getAttribute('href'));
  const shown = root => all('.curve:not(.off) .point', root);
  let active = null;              // the point whose tooltip is open
  let before = null;              // what was active when a pointer came down

  function dim() {
    for (const lit of all('.on, .lit')) lit.classList.remove('on', 'lit');
  }

  function hide() {
    dim();
    active = null;
    tip.hidden = true;
  }

  function highlight(point) {
    hide();
    const curve = point.closest('.curve');
    for (const part of [point, curve, targetOf(point)])
      part.classList.add('on');
    if (!curve.matches('.off')) point.closest('figure').classList.add('lit');
  }

  function show(point) {
    if (point === active) return;
    highlight(point);
    active = point;
    fill(targetOf(point));
    tip.className = point.closest('.curve').dataset.curve;
    tip.hidden = false;
    place(point.querySelector('.mark').getBoundingClientRect());
  }

  // What the pointer left goes back to what has the focus.
  function settle() {
    const focus = document.activeElement;
    if (focus.matches('.point')) show(focus);
    else if (focus.matches('tr[id] a')) highlight(targetOf(focus));
    else hide();
  }

  function fill(row) {
    const heads = row.closest('table').tHead.rows[0].cells;
    const [name, ...cells] = row.cells;
    const title = document.createElement('strong');
    const list = document.createElement('dl');
    title.textContent = name.textContent;
    for (const cell of cells) {
      const head = heads[cell.cellIndex].textContent;
      if (head === '95 %') {      // belongs to the figure on its left
        list.lastChild.textContent += ` (${cell.textContent})`;
        continue;
      }
      list.append(document.createElement('dt'), document.createElement('dd'));
      list.lastChild.previousSibling.textContent = head;
      list.lastChild.textContent = cell.textContent;
    }
    tip.replaceChildren(title, list);
  }

  function place(mark) {
    const {clientWidth, clientHeight} = document.documentElement;
    const {width, height} = tip.getBoundingClientRect();
    const clamp = (x, most) => Math.max(8, Math.min(x, most - 8));
    let left = mark.right + 12;
    let top = clamp((mark.top + mark.bottom - height) / 2,
                    clientHeight - height);
    if (left + width > clientWidth - 8) left = mark.left - 12 - width;
    if (left < 8) {               // no room on either side
      left = clamp((mark.left + mark.right - width) / 2, clientWidth - width);
      top = mark.bottom + 12;
      if (top + height > clientHeight) top = mark.top - 12 - height;
    }
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${top + scrollY}px`;
  }

  function nearest(plot, event) {
    let best = null;
    let least = REACH;
    for (const point of shown(plot)) {
      const mark = point.querySelector('.mark').getBoundingClientRect();
      const away = Math.hypot((mark.left + mark.right) / 2 - event.clientX,
                              (mark.top + mark.bottom) / 2 - event.clientY);
      if (away < least) [best, least] = [point, away];
    }
    return best;
  }

  // Left and right walk along a curve, up and down to the next curve.
  function step(point, key) {
    const curve = point.closest('.curve');
    const line = all('.point', curve);
    const by = key === 'ArrowLeft' || key === 'ArrowUp' ? -1 : 1;
    if (key === 'ArrowLeft' || key === 'ArrowRight')
      return line[line.indexOf(point) + by];
    const curves = all('.curve:not(.off)', point.closest('figure'));
    const count = curves.length;
    return curves[(curves.indexOf(curve) + by + count) % count]
        .querySelector('.point');
  }

  // One point of a plot is in the tab order: the one that had focus last.
  function rove(plot, chosen) {
    for (const point of all('.point', plot))
      point.setAttribute('tabindex', point === chosen ? 0 : -1);
  }

  function goToRow(point) {
    const link = targetOf(point).querySelector('a');
    link.focus({preventScroll: true});
    link.scrollIntoView({block: 'center'});
  }

  function goToPoint(link) {
    const point = targetOf(link);
    turn(point.closest('.curve').dataset.curve, true);
    point.closest('figure').scrollIntoView({block: 'center',
                                            behavior: 'instant'});
    point.focus({preventScroll: true});
  }

  function turn(curve, on) {
    const button = document.querySelector(`button[data-curve=${curve}]`);
    button.setAttribute('aria-pressed', on);
    for (const group of all(`.curve.${curve}`, panels))
      group.classList.toggle('off', !on);
    for (const plot of plots)
      if (!shown(plot).some(point => point.getAttribute('tabindex') === '0'))
        rove(plot, shown(plot)[0]);
  }

  for (const plot of plots) {
    rove(plot, shown(plot)[0]);
    plot.addEventListener('pointermove', event => {
      if (event.pointerType === 'touch') return;
      const point = nearest(plot, event);
      point ? show(point) : settle();
    });
    plot.addEventListener('pointerleave', event => {
      if (event.pointerType !== 'touch') settle();
    });
    plot.addEventListener('pointerdown', () => { before = active; });
    // A mouse is on a point already; a finger opens the tooltip first.
    plot.addEventListener('click', event => {
      const keyboard = event.detail === 0;
      const point = keyboard ? event.target.closest('.point')
          : nearest(plot, event);
      if (!point) return hide();
      event.preventDefault();
      keyboard || point === before ? goToRow(point) : show(point);
    });
    plot.addEventListener('focusin', event => {
      rove(plot, event.target);
      show(event.target);
    });
    plot.addEventListener('focusout', hide);
    plot.addEventListener('keydown', event => {
      if (!event.key.startsWith('Arrow')) return;
      event.preventDefault();
      step(event.target, event.key)?.focus();
    });
  }

  for (const point of all('.point')) {      // else the browser shows it, too
    const title = point.querySelector('title');
    point.setAttribute('aria-label', title.textContent);
    title.remove();
  }

  for (const button of all('button[data-curve]')) {
    const curve = button.dataset.curve;
    button.disabled = false;
    button.addEventListener('click', () =>
      turn(curve, button.getAttribute('aria-pressed') === 'false'));
    const light = () => {
      if (button.getAttribute('aria-pressed') === 'false') return;
      for (const plot of plots) plot.classList.add('lit');
      for (const group of all(`.curve.${curve}`)) group.classList.add('on');
    };
    button.addEventListener('pointerenter', light);
    button.addEventListener('focus', light);
    button.addEventListener('pointerleave', dim);
    button.addEventListener('blur', dim);
  }

  for (const row of all('tr[id]')) {
    const link = row.querySelector('a');
    const light = () => highlight(targetOf(link));
    row.addEventListener('pointerenter', light);
    row.addEventListener('focusin', light);
    row.addEventListener('pointerleave', settle);
    row.addEventListener('focusout', hide);
    link.addEventListener('click', event => {
      event.preventDefault();
      goToPoint(link);
    });
  }

  const intervals = document.getElementById('intervals');
  intervals.addEventListener('click', () => {
    const on = panels.classList.toggle('intervals');
    intervals.setAttribute('aria-pressed', on);
  });

  document.addEventListener('keydown', event => {
    if (event.key === 'Escape') hide();
  });
  document.addEventListener('pointerdown', event => {
    if (!event.target.closest('.panels figure')) hide();
  });
  panels.classList.add('live');
  for (const hidden of all('.scripted')) hidden.hidden = false;
})();
