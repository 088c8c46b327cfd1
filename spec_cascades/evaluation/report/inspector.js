'use strict';
// Probabilities of the token that is pointed at or has the focus, and which
// methods are shown.
(() => {
  const root = document.querySelector('.inspector');
  const tip = document.getElementById('probabilities');
  const all = (query, from = root) => [...from.querySelectorAll(query)];
  const tokenOf = event => event.target.closest('section .told i');
  let active = null;              // the token whose tooltip is open

  function hide() {
    active?.classList.remove('on');
    active?.removeAttribute('aria-describedby');
    active = null;
    tip.hidden = true;
  }

  function show(token) {
    if (token === active) return;
    hide();
    active = token;
    token.classList.add('on');
    token.setAttribute('aria-describedby', tip.id);
    fill(token);
    tip.hidden = false;
    place(token.getClientRects()[0]);
  }

  // What the pointer left goes back to what has the focus.
  function settle() {
    const focus = document.activeElement;
    focus.matches('section .told i') ? show(focus) : hide();
  }

  function fill(token) {
    const title = document.createElement('strong');
    const origin = document.createElement('span');
    const list = document.createElement('dl');
    title.textContent = token.textContent.replaceAll(' ', '\u2423');
    const kind = token.classList[0];
    if (kind !== 'on')
      origin.textContent = root.querySelector(`.told .${kind}`).textContent;
    for (const part of token.dataset.known.split(', ')) {
      const [name, value] = part.split(' ');
      const row = [document.createElement('dt'), document.createElement('dd')];
      row[0].textContent = name;
      row[1].textContent = value;
      row[1].style.setProperty('--share', `${100 * value}%`);
      list.append(...row);
    }
    tip.replaceChildren(title, origin, list);
  }

  function place(box) {
    const {clientWidth, clientHeight} = document.documentElement;
    const {width, height} = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, clientWidth - width - 8));
    const below = box.bottom + 8;
    const top = below + height < clientHeight ? below : box.top - 8 - height;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${top + scrollY}px`;
  }

  // One token of a text is in the tab order: the one that had focus last.
  function rove(token) {
    for (const other of all('[tabindex="0"]', token.parentNode))
      other.tabIndex = -1;
    token.tabIndex = 0;
  }

  for (const token of all('section .told i')) {
    token.dataset.known = token.title;       // else the browser shows it, too
    token.removeAttribute('title');
    if (!token.previousSibling) token.tabIndex = 0;
  }

  root.addEventListener('pointerover', event => {
    if (event.pointerType === 'touch') return;
    const token = tokenOf(event);
    token ? show(token) : settle();
  });
  root.addEventListener('pointerleave', event => {
    if (event.pointerType !== 'touch') settle();
  });
  root.addEventListener('click', event => {
    const token = tokenOf(event);
    if (!token) return;
    rove(token);
    token.focus({preventScroll: true});
  });
  root.addEventListener('focusin', event => {
    const token = tokenOf(event);
    if (token) show(token);
  });
  root.addEventListener('focusout', hide);
  root.addEventListener('keydown', event => {
    const token = tokenOf(event);
    const next = {ArrowLeft: token?.previousSibling,
                  ArrowRight: token?.nextSibling,
                  Home: token?.parentNode.firstChild,
                  End: token?.parentNode.lastChild}[event.key];
    if (!next) return;
    event.preventDefault();
    rove(next);
    next.focus();
  });
  document.addEventListener('keydown', event => {
    if (event.key === 'Escape') hide();
  });

  for (const button of all('button[data-method]'))
    button.addEventListener('click', () => {
      const on = button.getAttribute('aria-pressed') === 'false';
      button.setAttribute('aria-pressed', on);
      for (const card of all(`section.${button.dataset.method}`))
        card.hidden = !on;
    });
})();
